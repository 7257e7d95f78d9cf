// V-Half and V-Min: two chunks per rank in the shape of a V, searched for within a half and a third of 1F1B's
// activations. Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362, section 4. The
// building blocks of the paper need two and one chunk more than p and 2p/3. The search is Trireme's, see
// greedy_order.

#include "trireme/schedule/internal/action_list.h"
#include "trireme/schedule/internal/generators.h"
#include "trireme/schedule/internal/rule_search.h"
#include "trireme/schedule/internal/v_block.h"

namespace trireme::schedule {
namespace {

/// Every combination of the four legs that takes at most `sum` units per rank in total.
std::vector<Steepness> legs_up_to(int sum) {
  std::vector<Steepness> all;
  for (int code = 0; code < 81; ++code) {
    const Steepness legs{1 + code % 3, 1 + code / 3 % 3, 1 + code / 9 % 3, 1 + code / 27};
    if (legs.forward_down + legs.forward_up + legs.backward_down + legs.backward_up <= sum)
      all.push_back(legs);
  }
  return all;
}

Program search(const ScheduleOptions& options, int default_limit, int sum_of_legs) {
  const int p = options.num_ranks;
  const double limit = options.memory_limit > 0 ? options.memory_limit : 2.0 * default_limit;
  RuleSearch search(empty_program(p, 2, options.num_microbatches), options.costs, limit);
  for (int stage = 0; stage < 2 * p; ++stage) search.homes.push_back(stage < p ? stage : 2 * p - 1 - stage);
  search.in_flight = {{}};
  for (const Steepness& legs : legs_up_to(sum_of_legs)) {
    for (Program& order : v_block_orders(p, options.num_microbatches, options.costs, legs, limit)) {
      search.consider(std::move(order));
    }
  }
  return search.run();
}

}  // namespace

Program v_half(const ScheduleOptions& options) { return search(options, (options.num_ranks + 2) / 2, 6); }

Program v_min(const ScheduleOptions& options) { return search(options, (options.num_ranks + 4) / 3, 4); }

}  // namespace trireme::schedule
