// V-Half and V-Min: two chunks in the shape of a V, searched for within a half and a third of 1F1B's
// activations. Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362, section 4, whose
// building blocks need two and one chunk more than p and 2p/3; the search is ours, see greedy_order.

#include "trireme/schedule/internal/action_list.h"
#include "trireme/schedule/internal/generators.h"
#include "trireme/schedule/internal/rule_search.h"

namespace trireme::schedule {
namespace {

Program search(const ScheduleOptions& options, int default_limit) {
  const int p = options.num_ranks;
  const double limit = options.memory_limit > 0 ? options.memory_limit : static_cast<double>(default_limit);
  RuleSearch search(empty_program(p, 2, options.num_microbatches), options.costs, limit);
  for (int stage = 0; stage < 2 * p; ++stage) search.homes.push_back(stage < p ? stage : 2 * p - 1 - stage);
  search.in_flight = {{}};
  return search.run();
}

}  // namespace

Program v_half(const ScheduleOptions& options) { return search(options, options.num_ranks + 2); }

Program v_min(const ScheduleOptions& options) { return search(options, (2 * options.num_ranks + 2) / 3 + 1); }

}  // namespace trireme::schedule
