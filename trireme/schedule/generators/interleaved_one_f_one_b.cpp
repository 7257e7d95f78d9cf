// Interleaved 1F1B: each rank has v chunks of the model and changes to the next chunk after a group of
// micro-batches. Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
// Megatron-LM", arXiv 2104.04473, section 2.2.2. The default group size is that of PyTorch's
// ScheduleInterleaved1F1B: m / max(1, m / p) in integer division. Megatron-LM sets it with
// microbatch_group_size_per_vp_stage.

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/schedule/internal/action_list.h"
#include "trireme/schedule/internal/generators.h"
#include "trireme/schedule/internal/interleaving.h"

namespace trireme::schedule {
namespace {

/// Idle slots until the first backward reaches this rank. With them, every action is in the slot in which it
/// runs if all actions take one slot. Only the default group size gives such a table.
int slots_before_first_backward(const Interleaving& order, int rank, int warmup) {
  return order.num_chunks * order.num_ranks + 2 * (order.num_ranks - 1 - rank) - (warmup + rank);
}

std::vector<Action> rank_order(const Interleaving& order, int rank, bool with_idle) {
  const int total = order.num_chunks * order.num_microbatches;
  const int warmup =
      std::min(total, (order.num_chunks - 1) * order.group_size + 2 * (order.num_ranks - 1 - rank));
  ActionList list;
  if (with_idle) list.idle(rank);
  for (int k = 0; k < warmup; ++k) list.f(order.forward_stage(rank, k));
  if (with_idle && warmup > 0) list.idle(slots_before_first_backward(order, rank, warmup));
  for (int k = 0; k < total; ++k) {
    if (warmup + k < total) {
      list.f(order.forward_stage(rank, warmup + k));
    } else if (with_idle) {
      list.idle();
    }
    list.b(order.backward_stage(rank, k));
  }
  return list.take();
}

}  // namespace

Program interleaved_one_f_one_b(const ScheduleOptions& options) {
  const Interleaving order = interleaving(options);
  Program program = empty_program(options.num_ranks, options.num_chunks, options.num_microbatches);
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    program.ranks[static_cast<std::size_t>(rank)] = rank_order(order, rank, options.group_size == 0);
  }
  return program;
}

}  // namespace trireme::schedule
