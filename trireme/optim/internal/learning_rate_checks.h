#pragma once
// Checks before the first step of a schedule. All throw InvalidArgument.

#include "trireme/optim/learning_rate.h"

namespace trireme::optim {

/// Bounds that hold for every schedule: a warm-up within the run, fractions that are fractions.
void check_ranges(const LearningRateOptions& options, double base_lr, std::int64_t total_steps);

/// Additional checks of one schedule.
inline void fits_always(const LearningRateOptions&, std::int64_t /*total_steps*/) {}
void check_step(const LearningRateOptions& options, std::int64_t total_steps);
void check_multi_step(const LearningRateOptions& options, std::int64_t total_steps);
void check_exponential(const LearningRateOptions& options, std::int64_t total_steps);
void check_wsd(const LearningRateOptions& options, std::int64_t total_steps);

}  // namespace trireme::optim
