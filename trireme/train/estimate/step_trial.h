#pragma once
// Steps of a configuration, timed on the available ranks. Nothing is written, and the rate changes nothing.

#include <cstdint>

#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {

struct StepTrial {
  double step_s = 0;              ///< median; of the slowest rank
  std::int64_t memory_bytes = 0;  ///< of tensors at the peak, of the rank that has most
};

/// The largest or smallest of the ranks' numbers, on all ranks. Collective.
double agreed(comm::Context& context, double mine, comm::ReduceOp op);

/// Trains from the start of the run for about `trial_s` seconds: three steps at least and a hundred at most,
/// after two that do not count. The same on every rank. Collective. Throws InvalidArgument, CommError,
/// DataError.
StepTrial time_steps(const ParallelPlan& plan, comm::Context& context, const data::DataSource& data,
                     double trial_s);

}  // namespace trireme::train
