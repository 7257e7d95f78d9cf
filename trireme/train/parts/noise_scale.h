#pragma once
// What a run learns of its gradients' noise, and what it makes of it: the gradient noise scale
// (train.noise_scale_every_steps) and AdaScale's gain of the learning rate (lr.scale_with_batch =
// "adascale"). Parts are the micro-batches of all ranks. A rank adds up the squares of its own gradients
// while backward brings them; the sums travel in the report of the step, so nothing is exchanged besides, and
// all ranks have the same numbers, whoever had which part.

#include <cstdint>
#include <string>

#include "trireme/optim/gradient_noise.h"
#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {

/// Whether lr.scale_with_batch says so.
bool uses_ada_scale(const RunConfig& config);

/// Steps of the schedule of learning rates: those of the run, or with AdaScale scale-invariant ones:
/// lr.progress_steps, or as many as the run's samples make batches of lr.reference_batch.
std::int64_t schedule_steps(const RunConfig& config, std::int64_t total_steps);

/// Throws Refusal: plans in which the parts' own gradients, or their mean, are never whole on a rank.
void check_noise_scale(const ParallelPlan& plan);

/// "largest useful batch: about 3100 samples (...)": what a run ends with.
std::string describe_noise(const optim::GradientNoise& noise, std::int64_t global_batch);

}  // namespace trireme::train
