#pragma once
// parallel.priority = "forward": gradients that the next forward needs first go first, and each layer waits
// for its own parameters alone.

#include "trireme/parallel/data/distributed_data_parallel.h"
#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {

/// Throws a PlanError: a setting that conflicts with updates layer by layer.
void check_priority(const ParallelPlan& plan);

/// Gradients are reduced in slices, and asked for by parameter.
void reduce_by_priority(const RunConfig& config, parallel::DataParallelOptions& options);

}  // namespace trireme::train
