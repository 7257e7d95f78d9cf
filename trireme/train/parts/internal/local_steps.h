#pragma once
// parallel.local_steps: what it fits.

#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {

/// Throws a Refusal: what cannot be had where sites train apart.
void check_local_steps(const ParallelPlan& plan);

}  // namespace trireme::train
