#pragma once
// Makes an order by simulating the ranks. A free rank takes an available action, by the rules below and
// within its memory. One such run costs about as much as a simulation. So a generator tries many rules and
// keeps the order with the best result of simulate(). Follows the automatic scheduler of Qi et al. ("Zero
// Bubble Pipeline Parallelism", arXiv 2401.10241, section 3). That one fills a rank with forwards, then takes
// I before F before W. The rules here are Trireme's. Pure and thread-safe.

#include <vector>

#include "trireme/schedule/costs.h"
#include "trireme/schedule/program.h"

namespace trireme::schedule {

struct GreedyRules {
  /// Activations that a rank may hold; after I, Costs::kept_for_weight of one.
  double memory_limit = 0;
  /// Forwards that may wait for their I, per rank; empty: as memory allows.
  std::vector<int> max_in_flight = {};
  /// A computation is put off for an I that is under way when the wait is under this share of it.
  double patience_for_forward = 0;
  double patience_at_first = 0;  ///< the same for forwards before the rank's first I
  double patience_for_weight = 0;
  double patience_at_last = 0;  ///< the same for W once the rank has no forwards left
  /// Of a rank's stages that could continue, the later goes first with its forward (else the earlier).
  bool later_stage_first = true;
  /// Free memory is given to a forward before W, as long as it lasts.
  bool forward_before_weight = true;
};

/// `homes[s]` is the rank of stage s. Returns each rank's computations in order; incomplete lists where the
/// rules leave ranks waiting for each other.
std::vector<std::vector<Action>> greedy_order(const std::vector<int>& homes, int num_microbatches,
                                              const Costs& costs, const GreedyRules& rules);

}  // namespace trireme::schedule
