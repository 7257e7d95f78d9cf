// ZB-V: two chunks per rank in the shape of a V: the last stage is on the first rank, so its backward starts
// early. Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 6. The order is that of
// PyTorch's ScheduleZBVZeroBubble. It is made for at least 2p - 1 micro-batches; those beyond m are removed.

#include <algorithm>

#include "trireme/schedule/internal/action_list.h"
#include "trireme/schedule/internal/generators.h"
#include "trireme/schedule/internal/slots.h"

namespace trireme::schedule {
namespace {

/// The order of one rank for `m` >= 2p - 1 micro-batches; `down` and `up` are its stages on the two legs.
std::vector<Action> rank_order(int p, int rank, int m) {
  const int down = rank;
  const int up = 2 * p - 1 - rank;
  ActionList list;
  list.idle(rank);
  const auto three = [&](int stage) {
    list.f(stage);
    list.i(stage);
    list.w(stage);
  };
  for (int k = 0; k < 2 * (p - rank) - 1; ++k) list.f(down);
  for (int k = 0; k < rank; ++k) {
    list.f(up);
    list.f(down);
  }
  for (int k = 0; k < p - rank; ++k) three(up);
  while (list.forwards(up) < list.forwards(down) || list.forwards(down) < m) {
    if (list.forwards(down) < m) list.f(down);
    list.i(down);
    list.w(down);
    three(up);
  }
  for (int k = 0; k < rank; ++k) {
    list.i(down);
    list.i(up);
  }
  for (int k = 0; k < p - rank; ++k) {
    list.i(down);
    list.w(down);
  }
  while (list.weights(up) < list.backwards(up)) list.w(up);
  while (list.weights(down) < list.backwards(down)) list.w(down);
  return list.take();
}

}  // namespace

Program zero_bubble_v(const ScheduleOptions& options) {
  const int p = options.num_ranks;
  const int m = options.num_microbatches;
  Program program = empty_program(p, 2, m);
  for (int rank = 0; rank < p; ++rank) {
    std::vector<Action>& actions = program.ranks[static_cast<std::size_t>(rank)];
    actions = rank_order(p, rank, std::max(2 * p - 1, m));
    for (Action& action : actions) {
      if (action.microbatch >= m) action = {.kind = ActionKind::kIdle};
    }
  }
  return with_slots(program);
}

}  // namespace trireme::schedule
