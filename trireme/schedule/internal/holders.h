#pragma once
// Which rank runs a micro-batch of a stage, read off the forwards of a program; and dense numbering of
// (stage, micro-batch) for the tables of everything that walks programs. A value; reading is thread-safe.

#include <vector>

#include "trireme/schedule/program.h"

namespace trireme::schedule {

class Holders {
 public:
  static constexpr int kNobody = -1;

  explicit Holders(const Program& program)
      : num_stages_(program.num_stages),
        num_microbatches_(program.num_microbatches),
        rank_of_(size(), static_cast<int>(kNobody)) {
    for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
      for (const Action& action : program.ranks[rank]) {
        if (action.kind != ActionKind::kForward || !contains(action.stage, action.microbatch)) continue;
        int& holder = rank_of_[index(action.stage, action.microbatch)];
        if (holder == kNobody) holder = static_cast<int>(rank);
      }
    }
  }

  std::size_t size() const {
    return static_cast<std::size_t>(num_stages_) * static_cast<std::size_t>(num_microbatches_);
  }
  std::size_t index(int stage, int microbatch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(num_microbatches_) +
           static_cast<std::size_t>(microbatch);
  }
  bool contains(int stage, int microbatch) const {
    return stage >= 0 && stage < num_stages_ && microbatch >= 0 && microbatch < num_microbatches_;
  }
  bool is_last(int stage) const { return stage + 1 == num_stages_; }

  /// kNobody where no rank runs it, or where there is no such stage.
  int rank_of(int stage, int microbatch) const {
    return contains(stage, microbatch) ? rank_of_[index(stage, microbatch)] : kNobody;
  }

  /// The stage next to `action`'s that F hands its output to, I and B their gradient.
  static int receiver_stage(const Action& action) {
    return action.kind == ActionKind::kForward || action.kind == ActionKind::kSendForward ? action.stage + 1
                                                                                          : action.stage - 1;
  }
  /// Whether the result of a computation goes to another rank.
  bool crosses(const Action& action) const {
    if (action.kind != ActionKind::kForward && !makes_input_gradient(action.kind)) return false;
    const int receiver = rank_of(receiver_stage(action), action.microbatch);
    return receiver != kNobody && receiver != rank_of(action.stage, action.microbatch);
  }
  /// SEND_F or SEND_B for the result of a computation.
  static Action send_of(const Action& action) {
    const bool forward = action.kind == ActionKind::kForward;
    return {action.stage, forward ? ActionKind::kSendForward : ActionKind::kSendBackward, action.microbatch};
  }
  /// The RECV that a SEND needs.
  static Action receive_of(const Action& send) {
    const bool forward = send.kind == ActionKind::kSendForward;
    return {receiver_stage(send), forward ? ActionKind::kReceiveForward : ActionKind::kReceiveBackward,
            send.microbatch};
  }

 private:
  int num_stages_;
  int num_microbatches_;
  std::vector<int> rank_of_;
};

/// Results of the computations of a program so far: outputs and gradients by stage and micro-batch.
class Made {
 public:
  explicit Made(const Holders& holders)
      : holders_(holders), forward_(holders.size()), gradient_(holders.size()) {}

  void note(const Action& action) {
    const std::size_t index = holders_.index(action.stage, action.microbatch);
    if (action.kind == ActionKind::kForward) forward_[index] = 1;
    if (makes_input_gradient(action.kind)) gradient_[index] = 1;
  }
  /// Whether the inputs of `action` from the neighbour stages have been made.
  bool has_inputs_of(const Action& action) const {
    if (action.kind == ActionKind::kForward) return action.stage == 0 || made(forward_, action, -1);
    if (makes_input_gradient(action.kind)) {
      return holders_.is_last(action.stage) ? made(forward_, action, 0) : made(gradient_, action, 1);
    }
    return true;
  }

 private:
  bool made(const std::vector<char>& what, const Action& action, int offset) const {
    return what[holders_.index(action.stage + offset, action.microbatch)] != 0;
  }

  const Holders& holders_;
  std::vector<char> forward_, gradient_;
};

}  // namespace trireme::schedule
