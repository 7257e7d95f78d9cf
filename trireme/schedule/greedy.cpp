#include "trireme/schedule/internal/greedy.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "trireme/schedule/internal/action_list.h"

namespace trireme::schedule {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kSlack = 1e-9;  // rounding error of sums of times

class GreedyRun {
 public:
  GreedyRun(const std::vector<int>& homes, int num_microbatches, const Costs& costs, const GreedyRules& rules)
      : homes_(homes), m_(num_microbatches), costs_(costs), rules_(rules), stages_(homes.size()) {
    ranks_.resize(static_cast<std::size_t>(*std::max_element(homes.begin(), homes.end())) + 1);
    for (std::size_t stage = 0; stage < homes.size(); ++stage) {
      const auto count = static_cast<std::size_t>(m_);
      stages_[stage].input_at.assign(count, stage == 0 ? 0 : kNever);
      stages_[stage].gradient_at.assign(count, kNever);
      rank_of(static_cast<int>(stage)).stages.push_back(static_cast<int>(stage));
    }
  }

  std::vector<std::vector<Action>> run() {
    while (true) {
      // The rank with the earliest start: actions that start later cannot change its choice.
      double now = kNever;
      std::size_t chosen = 0;
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        if (ranks_[rank].stale) refresh(rank);
        if (ranks_[rank].next_start < now - kSlack) {
          now = ranks_[rank].next_start;
          chosen = rank;
        }
      }
      if (now == kNever) break;
      start(chosen, now);
    }
    std::vector<std::vector<Action>> lists;
    for (Rank& rank : ranks_) lists.push_back(std::move(rank.list));
    return lists;
  }

 private:
  struct Stage {
    int forwards = 0, inputs = 0, weights = 0;  ///< done or running
    std::vector<double> input_at, gradient_at;  ///< times of arrival on the rank
  };
  struct Rank {
    std::vector<int> stages;
    double free_at = 0;
    double memory = 0;
    bool has_backwards = false;
    bool stale = true;
    double next_start = 0;
    std::optional<Action> next;
    std::vector<Action> list = {};
  };

  Rank& rank_of(int stage) {
    return ranks_[static_cast<std::size_t>(homes_[static_cast<std::size_t>(stage)])];
  }
  Stage& state(int stage) { return stages_[static_cast<std::size_t>(stage)]; }
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  bool is_last(int stage) const { return at(stage) + 1 == homes_.size(); }

  double forward_ready(int stage) {
    const Stage& s = state(stage);
    return s.forwards < m_ ? s.input_at[at(s.forwards)] : kNever;
  }
  double input_ready(int stage) {
    const Stage& s = state(stage);
    return s.inputs < s.forwards ? s.gradient_at[at(s.inputs)] : kNever;
  }

  bool may_take_forward(std::size_t index, int stage) {
    const Rank& rank = ranks_[index];
    // The first stages of a rank leave memory for the later ones: without their backwards no memory is freed.
    double room = 1;
    for (const int other : rank.stages) {
      if (other > stage && state(other).forwards < m_) room += 1;
    }
    if (rank.memory + room > rules_.memory_limit + kSlack) return false;
    if (rules_.max_in_flight.empty()) return true;
    int in_flight = 0;
    for (const int other : rank.stages) in_flight += state(other).forwards - state(other).inputs;
    return in_flight < rules_.max_in_flight[index];
  }

  /// Chooses the rank's next action and its start time.
  void refresh(std::size_t index) {
    Rank& rank = ranks_[index];
    rank.stale = false;
    rank.next.reset();
    rank.next_start = kNever;
    std::optional<Action> best_forward, best_input, weight;
    double forward_at = kNever;
    double input_at = kNever;
    for (const int stage : rank.stages) {
      const double gradient = std::max(rank.free_at, input_ready(stage));
      if (gradient < kNever && (!best_input || gradient < input_at - kSlack ||
                                (gradient < input_at + kSlack && is_better(stage, best_input->stage)))) {
        input_at = gradient;
        best_input = backward_input(stage, state(stage).inputs);
      }
      const double input = std::max(rank.free_at, forward_ready(stage));
      if (input < kNever && may_take_forward(index, stage) &&
          (!best_forward || input < forward_at - kSlack ||
           (input < forward_at + kSlack && is_better(stage, best_forward->stage)))) {
        forward_at = input;
        best_forward = forward(stage, state(stage).forwards);
      }
      if (!weight && state(stage).weights < state(stage).inputs) {
        weight = backward_weight(stage, state(stage).weights);
      }
    }
    choose(rank, {best_input, input_at}, {best_forward, forward_at}, weight);
  }

  bool is_better(int stage, int than) const { return rules_.later_stage_first == (stage > than); }

  bool has_forwards(const Rank& rank) {
    return std::any_of(rank.stages.begin(), rank.stages.end(),
                       [&](int stage) { return state(stage).forwards < m_; });
  }

  struct Candidate {
    std::optional<Action> action;
    double at;
  };

  void choose(Rank& rank, const Candidate& input, const Candidate& forward,
              const std::optional<Action>& weight) {
    const auto take = [&](const std::optional<Action>& action, double start) {
      rank.next = action;
      rank.next_start = start;
    };
    const bool forward_now = forward.action && forward.at <= rank.free_at + kSlack;
    if (input.action && input.at <= forward.at + kSlack && (!weight || input.at <= rank.free_at + kSlack)) {
      return take(input.action, input.at);
    }
    const auto waits_for_input = [&](double start, double length, double share) {
      return input.action && input.at < start + share * length - kSlack;
    };
    const double forward_length = forward.action ? costs_.of(forward.action->stage).forward : 0;
    const double patience = rank.has_backwards ? rules_.patience_for_forward : rules_.patience_at_first;
    if (forward_now && (rules_.forward_before_weight || !weight)) {
      if (waits_for_input(forward.at, forward_length, patience)) {
        return take(input.action, input.at);
      }
      return take(forward.action, forward.at);
    }
    if (weight) {
      const double length = costs_.of(weight->stage).backward_weight;
      const double share = has_forwards(rank) ? rules_.patience_for_weight : rules_.patience_at_last;
      if (waits_for_input(rank.free_at, length, share)) return take(input.action, input.at);
      if (forward.action && forward.at < rank.free_at + share * length - kSlack) {
        return take(forward.action, forward.at);
      }
      return take(weight, rank.free_at);
    }
    if (forward.action && !waits_for_input(forward.at, forward_length, patience)) {
      return take(forward.action, forward.at);
    }
    if (input.action) return take(input.action, input.at);
  }

  void start(std::size_t index, double now) {
    Rank& rank = ranks_[index];
    const Action action = *rank.next;
    const StageCost cost = costs_.of(action.stage);
    Stage& stage = state(action.stage);
    rank.list.push_back(action);
    rank.stale = true;
    if (action.kind == ActionKind::kForward) {
      rank.free_at = now + cost.forward;
      rank.memory += 1;
      ++stage.forwards;
      if (is_last(action.stage)) {
        stage.gradient_at[at(action.microbatch)] = rank.free_at;
      } else {
        arrive(action, action.stage + 1, state(action.stage + 1).input_at);
      }
    } else if (action.kind == ActionKind::kBackwardInput) {
      rank.free_at = now + cost.backward_input;
      rank.memory -= 1 - costs_.kept_for_weight;
      rank.has_backwards = true;
      ++stage.inputs;
      if (action.stage > 0) arrive(action, action.stage - 1, state(action.stage - 1).gradient_at);
    } else {
      rank.free_at = now + cost.backward_weight;
      rank.memory -= costs_.kept_for_weight;
      ++stage.weights;
    }
  }

  void arrive(const Action& action, int to, std::vector<double>& times) {
    Rank& sender = rank_of(action.stage);
    Rank& receiver = rank_of(to);
    times[at(action.microbatch)] = sender.free_at + (&sender == &receiver ? 0 : costs_.hop);
    receiver.stale = true;
  }

  const std::vector<int>& homes_;
  const int m_;
  const Costs& costs_;
  const GreedyRules& rules_;
  std::vector<Stage> stages_;
  std::vector<Rank> ranks_;
};

}  // namespace

std::vector<std::vector<Action>> greedy_order(const std::vector<int>& homes, int num_microbatches,
                                              const Costs& costs, const GreedyRules& rules) {
  return GreedyRun(homes, num_microbatches, costs, rules).run();
}

}  // namespace trireme::schedule
