#pragma once
// parallel.local_steps: the plans that allow it.

#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {

/// Throws a PlanError: a setting that conflicts with local SGD of sites.
void check_local_steps(const ParallelPlan& plan);

}  // namespace trireme::train
