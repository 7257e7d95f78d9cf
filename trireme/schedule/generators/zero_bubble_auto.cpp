// ZB-1p and ZB-2p: the order is searched for with the given times, within a memory limit of p and of 2p
// activations. Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 3 and table 5. The
// search is Trireme's: it improves the rules of greedy_order one at a time. The handcrafted order is also a
// candidate. So the result is never slower than ZB-H1 and ZB-H2 where these fit.

#include <algorithm>

#include "trireme/schedule/internal/action_list.h"
#include "trireme/schedule/internal/generators.h"
#include "trireme/schedule/internal/rule_search.h"

namespace trireme::schedule {
namespace {

/// Later ranks need fewer micro-batches in flight.
std::vector<int> in_flight(int p, int depth, int less) {
  std::vector<int> most;
  for (int rank = 0; rank < p; ++rank) most.push_back(std::max(1, depth * (p - rank) - less));
  return most;
}

Program search(const ScheduleOptions& options, int depth, Program handcrafted) {
  const int p = options.num_ranks;
  const double limit = options.memory_limit > 0 ? options.memory_limit : static_cast<double>(depth * p);
  RuleSearch search(empty_program(p, 1, options.num_microbatches), options.costs, limit);
  for (int rank = 0; rank < p; ++rank) search.homes.push_back(rank);
  search.in_flight = {{}, in_flight(p, depth, depth - 1), in_flight(p, depth, 0)};
  search.consider(std::move(handcrafted));
  return search.run();
}

}  // namespace

Program zero_bubble_1p(const ScheduleOptions& options) { return search(options, 1, zero_bubble_h1(options)); }

Program zero_bubble_2p(const ScheduleOptions& options) { return search(options, 2, zero_bubble_h2(options)); }

}  // namespace trireme::schedule
