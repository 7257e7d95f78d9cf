#pragma once
// parallel.local_steps: what it fits.

#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {

/// Throws a PlanError: what cannot be had where sites use local SGD.
void check_local_steps(const ParallelPlan& plan);

}  // namespace trireme::train
