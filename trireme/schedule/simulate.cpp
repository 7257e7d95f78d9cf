#include "trireme/schedule/simulate.h"

#include <algorithm>
#include <map>

#include "trireme/base/error.h"
#include "trireme/schedule/internal/holders.h"
#include "trireme/schedule/internal/occupancy.h"
#include "trireme/schedule/internal/reductions.h"

namespace trireme::schedule {
namespace {

constexpr double kNotYet = -1;

void check(const Program& program, const Costs& costs) {
  require(costs.stages.size() <= 1 || static_cast<int>(costs.stages.size()) == program.num_stages,
          "costs are for ", costs.stages.size(), " stages, the program '", program.name, "' has ",
          program.num_stages, "; give one for all or one for each");
  // Small enough that the sum over a step does not overflow.
  constexpr double kMost = 1e100;
  const auto demand = [&](const char* what, double cost) {
    require(cost >= 0 && cost <= kMost, "costs are 0 to ", kMost, "; found ", cost, " for ", what);
  };
  demand("a hop", costs.hop);
  demand("the bytes of a message", costs.message_bytes);
  demand("the bandwidth", costs.bandwidth);
  demand("the overlap", costs.overlap);
  require(costs.share_of_core >= 0 && costs.share_of_core <= 1,
          "the share of exchanges that a rank loses is 0 to 1; found ", costs.share_of_core);
  require(costs.overlap > 0, "an overlapped pair takes more than no time");
  require(costs.bandwidth == 0 || costs.bandwidth >= 1 / kMost, "a bandwidth is at least ", 1 / kMost,
          " bytes per unit of time, or 0 for no limit; found ", costs.bandwidth);
  for (const StageCost& stage : costs.stages) {
    demand("a forward", stage.forward);
    demand("an input gradient", stage.backward_input);
    demand("a weight gradient", stage.backward_weight);
    demand("gathering weights", stage.unshard);
    demand("reducing gradients", stage.reduce);
    demand("an update", stage.update);
  }
  constexpr int kMaxBuckets = 1'000'000;
  require(costs.buckets >= 1 && costs.buckets <= kMaxBuckets, "gradients are reduced in 1 to ", kMaxBuckets,
          " buckets, not ", costs.buckets);
}

class Simulator {
 public:
  Simulator(const Program& program, const Costs& costs)
      : program_(program),
        costs_(costs),
        holders_(program),
        reductions_(program),
        output_ready_(holders_.size(), kNotYet),
        gradient_ready_(holders_.size(), kNotYet) {
    for (const std::vector<Action>& actions : program.ranks) {
      ranks_.push_back({.cells = cells_of(actions)});
      timeline_.spans.emplace_back(actions.size());
    }
    timeline_.exchanged.assign(ranks_.size(), 0);
  }

  Timeline run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        while (ranks_[rank].cell < ranks_[rank].cells.size() && advance(rank)) progress = true;
      }
    }
    for (const Rank& rank : ranks_) {
      require(rank.cell == rank.cells.size(), "program '", program_.name,
              "' waits for itself and cannot be simulated; 'trireme schedule --check' says where");
    }
    show_transfers();
    sum_up();
    return std::move(timeline_);
  }

 private:
  struct Rank {
    std::vector<Cell> cells;
    std::size_t cell = 0;
    std::size_t action = 0;  ///< index of the cell's first action in the rank's list
    double free_at = 0;
    double link_free_at = 0;  ///< of the link that gathers weights and reduces gradients
  };
  /// A stage on one of its ranks.
  struct Held {
    double gathered_at = 0;
    Span last_backward = {};  ///< that computes weight gradients
    std::vector<double> reduced_at = {};
  };

  double duration(const Action& action) const {
    const StageCost cost = costs_.of(action.stage);
    switch (action.kind) {
      case ActionKind::kForward:
      case ActionKind::kRecompute:
        return cost.forward;
      case ActionKind::kBackward:
        return cost.backward_input + cost.backward_weight;
      case ActionKind::kBackwardInput:
        return cost.backward_input;
      case ActionKind::kBackwardWeight:
        return cost.backward_weight;
      case ActionKind::kStep:
        return cost.update;
      default:
        return 0;
    }
  }

  Held& held(int stage, std::size_t rank) { return held_[{stage, rank}]; }

  /// Time at which the weights or gradients that the action needs are on the rank. kNotYet while a rank that
  /// also holds the stage has not reached its REDUCE_GRAD.
  double weights_ready(const Action& action, std::size_t rank) {
    if (is_compute(action.kind) || action.kind == ActionKind::kRecompute)
      return held(action.stage, rank).gathered_at;
    if (action.kind != ActionKind::kStep) return 0;
    const std::vector<double>& mine = held(action.stage, rank).reduced_at;
    if (reductions_.missing(rank, action.stage) != Holders::kNobody) return kNotYet;
    double ready = mine.empty() ? 0 : mine.back();
    if (program_.replicas.empty() || mine.empty()) return ready;
    for (const int other : program_.replicas[static_cast<std::size_t>(action.stage)])
      ready =
          std::max(ready, held(action.stage, static_cast<std::size_t>(other)).reduced_at[mine.size() - 1]);
    return ready;
  }

  /// The share of an exchange that occupies the rank, charged when the exchange begins.
  void lose(std::size_t index, double exchange) {
    ranks_[index].free_at += costs_.share_of_core * exchange;
    timeline_.exchanged[index] += costs_.share_of_core * exchange;
  }
  double beside(double exchange) const { return (1 - costs_.share_of_core) * exchange; }

  double gather(Rank& rank, int stage, std::size_t index) {
    lose(index, costs_.of(stage).unshard);
    rank.link_free_at = std::max(rank.link_free_at, rank.free_at) + beside(costs_.of(stage).unshard);
    return held(stage, index).gathered_at = rank.link_free_at;
  }

  double reduce(Rank& rank, int stage, std::size_t index) {
    Held& mine = held(stage, index);
    const Span& backward = mine.last_backward;
    lose(index, costs_.of(stage).reduce);
    const double of_bucket = beside(costs_.of(stage).reduce) / costs_.buckets;
    for (int bucket = 1; bucket <= costs_.buckets; ++bucket) {
      const double ready = bucket == costs_.buckets
                               ? rank.free_at
                               : backward.start + (backward.end - backward.start) * bucket / costs_.buckets;
      rank.link_free_at = std::max(rank.link_free_at, ready) + of_bucket;
    }
    mine.reduced_at.push_back(rank.link_free_at);
    return rank.link_free_at;
  }

  /// Time at which the output or gradient of the neighbour stage is on the action's rank; kNotYet before it
  /// is computed.
  double inputs_ready(const Action& action) const {
    if (action.kind == ActionKind::kForward && action.stage > 0) {
      return output_ready_[holders_.index(action.stage - 1, action.microbatch)];
    }
    if (makes_input_gradient(action.kind) && !holders_.is_last(action.stage)) {
      return gradient_ready_[holders_.index(action.stage + 1, action.microbatch)];
    }
    return 0;
  }

  bool advance(std::size_t index) {
    Rank& rank = ranks_[index];
    const Cell cell = rank.cells[rank.cell];
    double start = rank.free_at, exchanged = 0;
    double length = 0;
    for (const Action& action : cell) {
      const double inputs = inputs_ready(action), weights = weights_ready(action, index);
      if (inputs == kNotYet || weights == kNotYet) return false;
      start = std::max(start, inputs);
      exchanged = std::max(exchanged, weights);
      length += duration(action);
    }
    timeline_.exchanged[index] += std::max(exchanged - start, 0.0);
    start = std::max(start, exchanged);
    if (cell.size() > 1 && is_compute(cell.front().kind)) length *= costs_.overlap;
    const double end = rank.free_at = start + length;
    for (std::size_t i = 0; i < cell.size(); ++i) {
      timeline_.spans[index][rank.action + i] = {start, end_of(cell[i], index, {start, rank.free_at})};
      deliver(cell[i], index, end);
    }
    reductions_.enter(index, rank.cell, cell);
    rank.action += cell.size();
    ++rank.cell;
    return true;
  }

  double end_of(const Action& action, std::size_t index, const Span& span) {
    if (makes_weight_gradient(action.kind)) held(action.stage, index).last_backward = span;
    if (action.kind == ActionKind::kUnshard) return gather(ranks_[index], action.stage, index);
    if (action.kind == ActionKind::kReduceGrad) return reduce(ranks_[index], action.stage, index);
    return span.end;
  }

  void deliver(const Action& action, std::size_t index, double end) {
    if (action.kind != ActionKind::kForward && !makes_input_gradient(action.kind)) return;
    std::vector<double>& ready = action.kind == ActionKind::kForward ? output_ready_ : gradient_ready_;
    double arrival = end;
    if (holders_.crosses(action)) {
      double transfer = 0;
      if (costs_.bandwidth > 0) {
        const int from = holders_.rank_of(action.stage, action.microbatch);
        const int to = holders_.rank_of(Holders::receiver_stage(action), action.microbatch);
        double& link_free_at = link_free_at_[{from, to}];
        const double message = costs_.message_bytes / costs_.bandwidth;
        transfer = std::max(link_free_at - end, 0.0) + message;
        lose(index, message);
        link_free_at = end + transfer;
      }
      arrival = end + transfer + costs_.hop;
    }
    ready[holders_.index(action.stage, action.microbatch)] = arrival;
  }

  /// A transfer's span begins at its position in the list and ends with the arrival.
  void show_transfers() {
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) {
      for (std::size_t i = 0; i < program_.ranks[rank].size(); ++i) {
        const Action& action = program_.ranks[rank][i];
        if (!is_transfer(action.kind)) continue;
        const bool forward =
            action.kind == ActionKind::kSendForward || action.kind == ActionKind::kReceiveForward;
        const int maker = is_send(action.kind) ? action.stage : action.stage + (forward ? -1 : 1);
        const std::vector<double>& ready = forward ? output_ready_ : gradient_ready_;
        Span& span = timeline_.spans[rank][i];
        span.end = std::max(span.start, ready[holders_.index(maker, action.microbatch)]);
      }
    }
  }

  static bool occupies_rank(ActionKind kind) {
    return is_compute(kind) || kind == ActionKind::kRecompute || kind == ActionKind::kStep;
  }

  void sum_up() {
    double first = 0;
    double last = 0;
    bool any = false;
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) {
      double start = 0;
      double end = 0;
      double work = 0;
      bool seen = false;
      for (const Cell cell : cells_of(program_.ranks[rank])) {
        if (!occupies_rank(cell.front().kind)) continue;
        const auto index = static_cast<std::size_t>(cell.data() - program_.ranks[rank].data());
        const Span& span = timeline_.spans[rank][index];
        start = seen ? start : span.start;
        end = std::max(end, span.end);
        seen = true;
        work += span.end - span.start;
      }
      first = any ? std::min(first, start) : start;
      last = std::max(last, end);
      any = true;
      timeline_.cost = std::max(timeline_.cost, end - start);
      timeline_.work = std::max(timeline_.work, work);
      const Occupancy occupancy = occupancy_of(program_, rank, costs_.kept_for_weight);
      timeline_.peak_activations.push_back(occupancy.peak_activations);
      timeline_.peak_memory.push_back(occupancy.peak_memory);
    }
    timeline_.peak_weight_versions = peak_weight_versions(program_);
    timeline_.makespan = last - first;
    const double bubble = timeline_.cost - timeline_.work;
    timeline_.bubble_rate = timeline_.cost > 0 ? bubble / timeline_.cost : 0;
    timeline_.bubble_to_work = timeline_.work > 0 ? bubble / timeline_.work : 0;
  }

  const Program& program_;
  const Costs& costs_;
  Holders holders_;
  Reductions reductions_;
  std::map<std::pair<int, std::size_t>, Held> held_;   ///< by stage and rank
  std::vector<double> output_ready_, gradient_ready_;  ///< arrival times, by the stage that computes
  std::map<std::pair<int, int>, double> link_free_at_;
  std::vector<Rank> ranks_;
  Timeline timeline_;
};

}  // namespace

Timeline simulate(const Program& program, const Costs& costs) {
  check(program, costs);
  return Simulator(program, costs).run();
}

}  // namespace trireme::schedule
