#include "trireme/schedule/internal/v_block.h"

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "trireme/schedule/internal/action_list.h"
#include "trireme/schedule/internal/holders.h"

namespace trireme::schedule {
namespace {

constexpr int kPeriod = 6;
constexpr int kMaxPauses = 3;  // units by which a leg may start late
constexpr double kSlack = 1e-9;

/// The unit in which each rank runs its F and I of micro-batch 0.
struct Block {
  std::vector<std::array<int, 4>> units;  ///< per rank: forward down, forward up, backward down, backward up
};

/// `pauses[i]`: units between the end of leg i and the begin of leg i + 1.
Block block_of(int p, const Steepness& legs, const std::array<int, 3>& pauses) {
  Block block;
  const int turn = (p - 1) * legs.forward_down + 1 + pauses[0];         // forward up, on the last rank
  const int top = turn + (p - 1) * legs.forward_up + 1 + pauses[1];     // backward down, on the first
  const int back = top + (p - 1) * legs.backward_down + 1 + pauses[2];  // backward up, on the last
  for (int rank = 0; rank < p; ++rank) {
    const int behind = p - 1 - rank;
    block.units.push_back({rank * legs.forward_down, turn + behind * legs.forward_up,
                           top + rank * legs.backward_down, back + behind * legs.backward_up});
  }
  return block;
}

bool is_free_of_collisions(const Block& block) {
  for (const auto& units : block.units) {
    std::array<bool, kPeriod> taken = {};
    for (const int unit : units) {
      if (std::exchange(taken[static_cast<std::size_t>(unit % kPeriod)], true)) return false;
    }
  }
  return true;
}

/// The free units of a rank: each W takes the first after its I, for backward down and then backward up.
std::array<int, 2> weight_units(const std::array<int, 4>& units) {
  std::array<bool, kPeriod> taken = {};
  for (const int unit : units) taken[static_cast<std::size_t>(unit % kPeriod)] = true;
  std::array<int, 2> weights = {};
  for (std::size_t leg = 0; leg < 2; ++leg) {
    int unit = units[2 + leg] + 1;
    while (taken[static_cast<std::size_t>(unit % kPeriod)]) ++unit;
    taken[static_cast<std::size_t>(unit % kPeriod)] = true;
    weights[leg] = unit;
  }
  return weights;
}

enum class Weights { kLeftOut, kInRhythm };

/// F and I, and W if requested, of all micro-batches in the order of their units.
Program rhythm(int p, int m, const Block& block, Weights weights) {
  Program order = empty_program(p, 2, m);
  for (int rank = 0; rank < p; ++rank) {
    const int up = 2 * p - 1 - rank;
    const std::array<int, 4>& units = block.units[static_cast<std::size_t>(rank)];
    const std::array<int, 2> of_weights = weight_units(units);
    std::vector<std::pair<int, Action>> timed;
    for (int k = 0; k < m; ++k) {
      const int begin = k * kPeriod;
      timed.push_back({units[0] + begin, forward(rank, k)});
      timed.push_back({units[1] + begin, forward(up, k)});
      timed.push_back({units[2] + begin, backward_input(up, k)});
      timed.push_back({units[3] + begin, backward_input(rank, k)});
      if (weights == Weights::kLeftOut) continue;
      timed.push_back({of_weights[0] + begin, backward_weight(up, k)});
      timed.push_back({of_weights[1] + begin, backward_weight(rank, k)});
    }
    std::sort(timed.begin(), timed.end());
    for (const auto& [unit, action] : timed) order.ranks[static_cast<std::size_t>(rank)].push_back(action);
  }
  return order;
}

/// Simulates an order of F and I. Inserts each W where its rank would be idle long enough, or where memory
/// must be freed.
class WeightFiller {
 public:
  WeightFiller(const Program& order, const Costs& costs, double memory_limit)
      : order_(order),
        costs_(costs),
        limit_(memory_limit),
        holders_(order),
        output_at_(holders_.size(), kNotYet),
        gradient_at_(holders_.size(), kNotYet),
        ranks_(order.ranks.size()) {}

  Program run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        while (ranks_[rank].next < order_.ranks[rank].size() && advance(rank)) progress = true;
      }
    }
    Program filled = order_;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      while (!ranks_[rank].open.empty()) do_weight(ranks_[rank]);
      filled.ranks[rank] = std::move(ranks_[rank].list);
    }
    return filled;
  }

 private:
  static constexpr double kNotYet = -1;
  struct Rank {
    std::size_t next = 0;
    double free_at = 0;
    double memory = 0;
    std::deque<Action> open;  ///< W's that are deferred
    std::vector<Action> list;
  };

  void do_weight(Rank& rank) {
    const Action weight = rank.open.front();
    rank.open.pop_front();
    rank.list.push_back(weight);
    rank.free_at += costs_.of(weight.stage).backward_weight;
    rank.memory -= costs_.kept_for_weight;
  }

  double ready(const Action& action) const {
    if (action.kind == ActionKind::kForward) {
      return action.stage == 0 ? 0 : output_at_[holders_.index(action.stage - 1, action.microbatch)];
    }
    return holders_.is_last(action.stage) ? 0
                                          : gradient_at_[holders_.index(action.stage + 1, action.microbatch)];
  }

  bool advance(std::size_t index) {
    Rank& rank = ranks_[index];
    const Action& action = order_.ranks[index][rank.next];
    const double start = ready(action);
    if (start == kNotYet) return false;
    const bool is_forward = action.kind == ActionKind::kForward;
    while (!rank.open.empty() &&
           (rank.free_at + costs_.of(rank.open.front().stage).backward_weight <= start + kSlack ||
            (is_forward && rank.memory + 1 > limit_ + kSlack))) {
      do_weight(rank);
    }
    const StageCost cost = costs_.of(action.stage);
    rank.free_at = std::max(rank.free_at, start) + (is_forward ? cost.forward : cost.backward_input);
    rank.memory += is_forward ? 1 : costs_.kept_for_weight - 1;
    if (!is_forward) rank.open.push_back(backward_weight(action.stage, action.microbatch));
    rank.list.push_back(action);
    ++rank.next;
    std::vector<double>& made = is_forward ? output_at_ : gradient_at_;
    made[holders_.index(action.stage, action.microbatch)] =
        rank.free_at + (holders_.crosses(action) ? costs_.hop : 0);
    return true;
  }

  const Program& order_;
  const Costs& costs_;
  const double limit_;
  Holders holders_;
  std::vector<double> output_at_, gradient_at_;
  std::vector<Rank> ranks_;
};

}  // namespace

std::vector<Program> v_block_orders(int num_ranks, int num_microbatches, const Costs& costs, Steepness legs,
                                    double memory_limit) {
  std::vector<Program> orders;
  for (int code = 0; code < (kMaxPauses + 1) * (kMaxPauses + 1) * (kMaxPauses + 1); ++code) {
    const int base = kMaxPauses + 1;
    const Block block = block_of(num_ranks, legs, {code % base, code / base % base, code / base / base});
    if (!is_free_of_collisions(block)) continue;
    orders.push_back(rhythm(num_ranks, num_microbatches, block, Weights::kInRhythm));
    const Program without_weights = rhythm(num_ranks, num_microbatches, block, Weights::kLeftOut);
    orders.push_back(WeightFiller(without_weights, costs, memory_limit).run());
  }
  return orders;
}

}  // namespace trireme::schedule
