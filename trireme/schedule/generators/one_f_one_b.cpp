// 1F1B, PipeDream-Flush: one warm-up forward per later rank, then a forward and a backward in alternation.
// Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", arXiv 2006.09503, section 3.2.

#include <algorithm>

#include "trireme/schedule/internal/action_list.h"
#include "trireme/schedule/internal/generators.h"

namespace trireme::schedule {

Program one_f_one_b(const ScheduleOptions& options) {
  const int p = options.num_ranks;
  const int m = options.num_microbatches;
  Program program = empty_program(p, 1, m);
  for (int rank = 0; rank < p; ++rank) {
    const int warmup = std::min(m, p - rank - 1);
    ActionList list;
    for (int i = 0; i < warmup; ++i) list.f(rank);
    for (int i = 0; i < m - warmup; ++i) {
      list.f(rank);
      list.b(rank);
    }
    for (int i = 0; i < warmup; ++i) list.b(rank);
    program.ranks[static_cast<std::size_t>(rank)] = list.take();
  }
  return program;
}

}  // namespace trireme::schedule
