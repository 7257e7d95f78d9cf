// Breadth first: all micro-batches of a chunk, then those of the next; backwards in the reverse order.
// Lamy-Poirier, "Breadth-First Pipeline Parallelism", arXiv 2211.05953. Backwards run in descending order of
// micro-batches, as in PyTorch's ScheduleLoopedBFS.

#include "trireme/schedule/internal/action_list.h"
#include "trireme/schedule/internal/generators.h"

namespace trireme::schedule {

Program looped_bfs(const ScheduleOptions& options) {
  const int p = options.num_ranks;
  const int m = options.num_microbatches;
  Program program = empty_program(p, options.num_chunks, m);
  for (int rank = 0; rank < p; ++rank) {
    ActionList list;
    list.idle(rank);
    for (int chunk = 0; chunk < options.num_chunks; ++chunk) {
      for (int i = 0; i < m; ++i) list.f(chunk * p + rank);
    }
    list.idle(2 * (p - 1 - rank));
    std::vector<Action>& actions = program.ranks[static_cast<std::size_t>(rank)];
    actions = list.take();
    for (int chunk = options.num_chunks - 1; chunk >= 0; --chunk) {
      for (int i = m - 1; i >= 0; --i) actions.push_back(backward(chunk * p + rank, i));
    }
  }
  return program;
}

}  // namespace trireme::schedule
