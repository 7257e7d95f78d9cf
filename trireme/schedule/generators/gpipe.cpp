// GPipe: all forwards, then all backwards. Huang et al., "GPipe", arXiv 1811.06965, figure 2c. Backwards run
// in ascending order of micro-batches, as in PyTorch's ScheduleGPipe.

#include "trireme/schedule/internal/action_list.h"
#include "trireme/schedule/internal/generators.h"

namespace trireme::schedule {

Program gpipe(const ScheduleOptions& options) {
  const int p = options.num_ranks;
  Program program = empty_program(p, 1, options.num_microbatches);
  for (int rank = 0; rank < p; ++rank) {
    ActionList list;
    list.idle(rank);
    for (int i = 0; i < options.num_microbatches; ++i) list.f(rank);
    list.idle(3 * (p - 1 - rank));  // a forward on each later rank, a backward (twice as long) back
    for (int i = 0; i < options.num_microbatches; ++i) list.b(rank);
    program.ranks[static_cast<std::size_t>(rank)] = list.take();
  }
  return program;
}

}  // namespace trireme::schedule
