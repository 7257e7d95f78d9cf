#pragma once
// A global batch that grows during a run (train.batch_ramp_sizes, train.batch_ramp_steps): its sizes and
// steps by the configuration. They give the batch size of each step. Pure.

#include <cstdint>
#include <span>
#include <string>

#include "trireme/data/batch_layout.h"
#include "trireme/train/config/run_config.h"

namespace trireme::train {

/// The smaller batches of the first steps, as a run begins; empty where all are alike. For a configuration
/// that has been checked.
data::BatchRamp batch_ramp(const TrainOptions& train);

/// Whether it grows with the measured noise of gradients, and not at given steps.
bool grows_with_noise(const TrainOptions& train);

/// The ramp of such a run, of which the first sizes have ended after those steps.
data::BatchRamp ramp_so_far(const TrainOptions& train, std::span<const std::int64_t> ends);

/// All batches have train.global_batch samples.
TrainOptions without_ramp(TrainOptions train);

/// The last batch of an epoch (data.drop_last).
data::LastBatch last_batch(const RunConfig& config);

/// Which samples which step takes of a data set of so many.
data::BatchLayout batch_layout(const RunConfig& config, std::int64_t samples);

/// The smallest full batch of the run: the first one.
std::int64_t smallest_batch(const TrainOptions& train);

/// "512", or "64, 128 from step 1001 on, 512 from step 3001 on": steps are numbered from 1, as in the
/// metrics.
std::string describe_batches(const TrainOptions& train);

/// The same ramp over so few steps: each size holds for an equal part of them, the last ones too; with fewer
/// steps than sizes only the last sizes come. Unchanged where all sizes come in so many steps, or there is no
/// ramp. One that grows with noise becomes one at steps.
TrainOptions ramp_within(TrainOptions train, std::int64_t steps);

/// Throws PlanError: lists that do not belong together, steps or sizes that do not rise.
void check_batch_ramp(const RunConfig& config);

}  // namespace trireme::train
