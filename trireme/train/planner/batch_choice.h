#pragma once
// The global batch as one more choice of the planner: for each size the fastest plan, compared by the time of
// a sample. Another batch trains another model, so that this is a search of its own. Pure.

#include <cstdint>
#include <vector>

#include "trireme/train/planner/plan_search.h"

namespace trireme::train {

/// A global batch, and its plan.
struct BatchChoice {
  std::int64_t global_batch = 0;
  PlannedStep plan;  ///< the fastest that fits
};

/// The searched batches, and the batch that ended the search.
struct BatchChoices {
  std::vector<BatchChoice> batches;  ///< by rising batch; with the configuration's where a plan for it fits
  std::int64_t first_too_large = 0;  ///< no plan for it fits; 0: the speed has ended the search
  PlanSearch without_fit = {};       ///< of first_too_large
  bool is_complete = true;           ///< no limit has ended a search

  /// The smallest batch whose samples take at most 1 % more time than those of the fastest one. There is one.
  const BatchChoice& fastest() const;
};

/// Batches are powers of two times the ranks, and the configuration's. They grow until no plan fits, or until
/// two doublings have not made a sample 1 % faster; up to four times the configuration's batch only memory
/// ends the search. Costs of micro-batches that are larger than measured ones are on the same line. Batches
/// below the configuration's that cannot run are left out. Throws InvalidArgument as search_plans() does for
/// the others, and for a batch that grows in the run (train.batch_ramp_sizes). Cost: that of a search for
/// each batch: `max_work` for the configuration's, and an eighth of it for each other.
BatchChoices search_batch_sizes(const RunConfig& config, int world_size, const MeasuredForms& measured,
                                const PlanSearchOptions& options = {});

}  // namespace trireme::train
