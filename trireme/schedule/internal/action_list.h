#pragma once
// Functions for writing programs: one per computation, and a rank's list that counts micro-batches by itself,
// in the form of most papers. Values; one thread at a time.

#include <map>
#include <vector>

#include "trireme/schedule/program.h"

namespace trireme::schedule {

inline Action forward(int stage, int microbatch) { return {stage, ActionKind::kForward, microbatch}; }
inline Action backward(int stage, int microbatch) { return {stage, ActionKind::kBackward, microbatch}; }
inline Action backward_input(int stage, int microbatch) {
  return {stage, ActionKind::kBackwardInput, microbatch};
}
inline Action backward_weight(int stage, int microbatch) {
  return {stage, ActionKind::kBackwardWeight, microbatch};
}

/// A rank's list. F, I, B and W take the stage's next micro-batch of their kind.
class ActionList {
 public:
  /// For several ranks that share a stage, micro-batches may begin elsewhere: first_of[stage].
  explicit ActionList(std::map<int, int> first_of = {}) : first_of_(std::move(first_of)) {}

  void idle(int slots = 1) {
    for (int i = 0; i < slots; ++i) actions_.push_back({.kind = ActionKind::kIdle});
  }
  void f(int stage) { add(stage, ActionKind::kForward); }
  void b(int stage) { add(stage, ActionKind::kBackward); }
  void i(int stage) { add(stage, ActionKind::kBackwardInput); }
  void w(int stage) { add(stage, ActionKind::kBackwardWeight); }
  /// A forward and a full backward that overlap.
  void pair(int forward_stage, int backward_stage) {
    f(forward_stage);
    actions_.back().joined = true;
    b(backward_stage);
  }

  int forwards(int stage) const { return count(stage, ActionKind::kForward); }
  /// I and B together.
  int backwards(int stage) const { return count(stage, ActionKind::kBackwardInput); }
  int weights(int stage) const { return count(stage, ActionKind::kBackwardWeight); }

  std::vector<Action> take() { return std::move(actions_); }

 private:
  /// B counts as I and as W, which keeps the micro-batches of a stage in step when the two mix.
  void add(int stage, ActionKind kind) {
    const bool full = kind == ActionKind::kBackward;
    int& next = next_[{stage, full ? ActionKind::kBackwardInput : kind}];
    const auto first = first_of_.find(stage);
    actions_.push_back({stage, kind, next + (first == first_of_.end() ? 0 : first->second)});
    ++next;
    if (full) ++next_[{stage, ActionKind::kBackwardWeight}];
  }

  int count(int stage, ActionKind kind) const {
    const auto found = next_.find({stage, kind});
    return found == next_.end() ? 0 : found->second;
  }

  std::map<int, int> first_of_;
  std::map<std::pair<int, ActionKind>, int> next_;
  std::vector<Action> actions_;
};

/// A program with `stages_per_rank` stages on each rank and nothing in it yet.
inline Program empty_program(int num_ranks, int stages_per_rank, int num_microbatches) {
  return {.name = "",
          .num_stages = num_ranks * stages_per_rank,
          .num_microbatches = num_microbatches,
          .ranks = std::vector<std::vector<Action>>(static_cast<std::size_t>(num_ranks))};
}

}  // namespace trireme::schedule
