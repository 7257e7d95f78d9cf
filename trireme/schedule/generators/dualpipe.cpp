// DualPipe and DualPipeV: a forward and a backward of different micro-batches run as one overlapped pair.
// DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv 2412.19437, section 3.2.1, and deepseek-ai/DualPipe,
// whose eight steps are those below. In DualPipe half of the micro-batches enter at each end, with two copies
// of the model. DualPipeV cuts it in the middle and folds it. In both, a rank has two legs, `down` and `up`;
// the micro-batches on `down` come first.

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/schedule/internal/action_list.h"
#include "trireme/schedule/internal/generators.h"

namespace trireme::schedule {
namespace {

struct Legs {
  int down, up;           ///< stages
  int ranks_of_leg;       ///< n: ranks that a leg passes
  int rank;               ///< r: place of this rank on its leg, 0 to n - 1
  int per_leg;            ///< micro-batches on each leg
  bool first_pair_apart;  ///< the first pair is not overlapped: nothing is in flight yet
};

/// Step 6: backwards of both legs in alternation, split from the middle on.
void wind_down(ActionList& list, const Legs& legs) {
  bool split = false;
  for (int i = 0; i <= legs.rank; ++i) {
    for (const int stage : {legs.up, legs.down}) {
      const bool at_middle = i == (legs.rank + 1) / 2 && (legs.rank % 2 == 1) == (stage == legs.up);
      split = split || at_middle;
      split ? list.i(stage) : list.b(stage);
    }
  }
}

/// Step 8 and part of 7: the oldest deferred weight gradient.
void oldest_weight(ActionList& list, std::vector<Action>& put_off) {
  list.w(put_off.front().stage);
  put_off.erase(put_off.begin());
}

/// I's of a finished list that have no W yet, in list order.
std::vector<Action> inputs_without_weights(std::vector<Action> actions) {
  std::vector<Action> open;
  for (const Action& action : actions) {
    if (action.kind == ActionKind::kBackwardInput) open.push_back(action);
    if (action.kind == ActionKind::kBackwardWeight) {
      std::erase(open, Action{action.stage, ActionKind::kBackwardInput, action.microbatch});
    }
  }
  return open;
}

void warm_up(ActionList& list, const Legs& legs) {
  const int behind = legs.ranks_of_leg - legs.rank - 1;
  for (int i = 0; i < 2 * behind; ++i) list.f(legs.down);
  for (int i = 0; i <= legs.rank; ++i) {
    list.f(legs.down);
    list.f(legs.up);
  }
  for (int i = 0; i < behind; ++i) {
    list.i(legs.up);
    list.w(legs.up);
    list.f(legs.up);
  }
}

void steady(ActionList& list, const Legs& legs) {
  const int behind = legs.ranks_of_leg - legs.rank - 1;
  for (int i = 0; i < legs.per_leg - 2 * legs.ranks_of_leg + legs.rank + 1; ++i) {
    if (i == 0 && legs.first_pair_apart) {
      list.f(legs.down);
      list.b(legs.up);
    } else {
      list.pair(legs.down, legs.up);
    }
    list.pair(legs.up, legs.down);
  }
  for (int i = 0; i < behind; ++i) {
    list.b(legs.up);
    list.pair(legs.up, legs.down);
  }
}

std::vector<Action> rank_order(const Legs& legs, ActionList list) {
  warm_up(list, legs);
  steady(list, legs);
  wind_down(list, legs);
  ActionList rest = list;
  std::vector<Action> put_off = inputs_without_weights(rest.take());
  for (int i = 0; i < legs.ranks_of_leg - legs.rank - 1; ++i) {
    oldest_weight(list, put_off);
    list.i(legs.down);
    put_off.push_back({legs.down, ActionKind::kBackwardInput});
  }
  while (!put_off.empty()) oldest_weight(list, put_off);
  return list.take();
}

}  // namespace

Program dualpipe_v(const ScheduleOptions& options) {
  const int p = options.num_ranks;
  const int m = options.num_microbatches;
  require(m >= 2 * p, "dualpipe-v needs at least 2 micro-batches per rank (", 2 * p, "), found ", m);
  Program program = empty_program(p, 2, m);
  for (int rank = 0; rank < p; ++rank) {
    program.ranks[static_cast<std::size_t>(rank)] = rank_order({.down = rank,
                                                                .up = 2 * p - 1 - rank,
                                                                .ranks_of_leg = p,
                                                                .rank = rank,
                                                                .per_leg = m,
                                                                .first_pair_apart = rank == p - 1},
                                                               ActionList());
  }
  return program;
}

Program dualpipe(const ScheduleOptions& options) {
  const int p = options.num_ranks;
  const int m = options.num_microbatches;
  require(p % 2 == 0, "dualpipe needs an even number of ranks, found ", p);
  require(m % 2 == 0 && m >= 2 * p, "dualpipe needs an even number of micro-batches, at least 2 per rank (",
          2 * p, "), found ", m);
  Program program = empty_program(p, 1, m);
  for (int rank = 0; rank < p; ++rank) {
    const bool first_half = rank < p / 2;
    const int near = first_half ? rank : p - 1 - rank;  // stage of the micro-batches that enter at this end
    const int far = p - 1 - near;
    const int first = first_half ? 0 : m / 2;
    program.ranks[static_cast<std::size_t>(rank)] =
        rank_order({.down = near,
                    .up = far,
                    .ranks_of_leg = p / 2,
                    .rank = near,
                    .per_leg = m / 2,
                    .first_pair_apart = near == p / 2 - 1},
                   ActionList({{near, first}, {far, m / 2 - first}}));
    program.replicas.push_back({std::min(rank, p - 1 - rank), std::max(rank, p - 1 - rank)});
  }
  return program;
}

}  // namespace trireme::schedule
