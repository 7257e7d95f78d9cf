// Model parallelism without a pipeline: a micro-batch runs forward and backward through all stages before the
// next one enters. Source: the tutorial "Single-Machine Model Parallel Best Practices" of PyTorch.

#include "trireme/schedule/internal/action_list.h"
#include "trireme/schedule/internal/generators.h"

namespace trireme::schedule {

Program naive(const ScheduleOptions& options) {
  Program program = empty_program(options.num_ranks, 1, options.num_microbatches);
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    ActionList list;
    for (int microbatch = 0; microbatch < options.num_microbatches; ++microbatch) {
      list.f(rank);
      list.b(rank);
    }
    program.ranks[static_cast<std::size_t>(rank)] = list.take();
  }
  return program;
}

}  // namespace trireme::schedule
