// ZB-H1 and ZB-H2: 1F1B with the backward split; W is deferred so that it fills the bubble at the end. Qi et
// al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 2.2, figures 2 and 3, table 2. H1 has
// the warm-up of 1F1B and defers W by one micro-batch per rank. H2 about doubles both, which needs more
// memory.

#include <algorithm>

#include "trireme/schedule/internal/action_list.h"
#include "trireme/schedule/internal/generators.h"

namespace trireme::schedule {
namespace {

struct Depth {
  int warmup;   ///< forwards before the first backward
  int put_off;  ///< I's before the first W
};

std::vector<Action> rank_order(int rank, int m, Depth depth) {
  ActionList list;
  for (int k = 0; k < std::min(m, depth.warmup); ++k) list.f(rank);
  for (int k = 0; k < m; ++k) {
    list.i(rank);
    if (k >= depth.put_off) list.w(rank);
    if (list.forwards(rank) < m) list.f(rank);
  }
  while (list.weights(rank) < m) list.w(rank);
  return list.take();
}

}  // namespace

Program zero_bubble_h1(const ScheduleOptions& options) {
  Program program = empty_program(options.num_ranks, 1, options.num_microbatches);
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    program.ranks[static_cast<std::size_t>(rank)] =
        rank_order(rank, options.num_microbatches, {.warmup = options.num_ranks - rank, .put_off = rank});
  }
  return program;
}

Program zero_bubble_h2(const ScheduleOptions& options) {
  Program program = empty_program(options.num_ranks, 1, options.num_microbatches);
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    program.ranks[static_cast<std::size_t>(rank)] = rank_order(
        rank, options.num_microbatches, {.warmup = 2 * (options.num_ranks - rank) - 1, .put_off = 2 * rank});
  }
  return program;
}

}  // namespace trireme::schedule
