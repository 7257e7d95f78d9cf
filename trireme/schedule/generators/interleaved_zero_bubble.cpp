// Interleaved 1F1B with the backward split into I and W, after Qi et al., "Zero Bubble Pipeline Parallelism",
// arXiv 2401.10241. The order is that of PyTorch's ScheduleInterleavedZeroBubble. The part of the warm-up
// that depends on the rank is half of interleaved 1F1B's. Rank r defers its first W by r I's; then the oldest
// W follows each I.

#include <algorithm>

#include "trireme/schedule/internal/action_list.h"
#include "trireme/schedule/internal/generators.h"
#include "trireme/schedule/internal/interleaving.h"
#include "trireme/schedule/internal/slots.h"

namespace trireme::schedule {
namespace {

std::vector<Action> rank_order(const Interleaving& order, int rank) {
  const int total = order.num_chunks * order.num_microbatches;
  const int behind = order.num_ranks - 1 - rank;
  const int warmup = std::min(total, (order.num_chunks - 1) * order.group_size + behind);
  ActionList list;
  list.idle(rank);
  for (int k = 0; k < warmup; ++k) list.f(order.forward_stage(rank, k));
  if (warmup > 0) list.idle(behind);
  int weights = 0;
  for (int k = 0; k < total; ++k) {
    if (warmup + k < total) list.f(order.forward_stage(rank, warmup + k));
    list.i(order.backward_stage(rank, k));
    if (k >= rank) list.w(order.backward_stage(rank, weights++));
  }
  while (weights < total) list.w(order.backward_stage(rank, weights++));
  return list.take();
}

}  // namespace

Program interleaved_zero_bubble(const ScheduleOptions& options) {
  const Interleaving order = interleaving(options);
  Program program = empty_program(options.num_ranks, options.num_chunks, options.num_microbatches);
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    program.ranks[static_cast<std::size_t>(rank)] = rank_order(order, rank);
  }
  return with_slots(program);
}

}  // namespace trireme::schedule
