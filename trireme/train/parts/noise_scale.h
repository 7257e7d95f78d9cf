#pragma once
// The gradient noise scale that a run measures (train.noise_scale_every_steps). Parts are the micro-batches
// of all ranks. A rank sums the squares of its own gradients during backward. The sums travel in the report
// of the step, so there is no other exchange. All ranks have the same numbers, for any assignment of parts.

#include <cstdint>
#include <string>

#include "trireme/optim/gradient_noise.h"
#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {

/// Throws PlanError: plans in which the parts' own gradients, or their mean, are never whole on a rank.
void check_noise_scale(const ParallelPlan& plan);

/// "largest useful batch: about 3100 samples (...)": the last line of a run on its noise.
std::string describe_noise(const optim::GradientNoise& noise, std::int64_t global_batch);

}  // namespace trireme::train
