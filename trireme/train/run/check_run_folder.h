#pragma once
// Checks of a run's folder that need no started rank.

#include "trireme/base/log.h"
#include "trireme/train/plan/parallel_plan.h"
#include "trireme/train/run/run.h"

namespace trireme::train {

/// Throws DataError: the folder cannot be written, or there is no checkpoint to resume from; InvalidArgument:
/// another run is writing there, or the newest checkpoint is of a run that this plan cannot continue with.
/// Leaves the folder as it was. Whether that checkpoint is whole, the ranks find out.
void check_run_folder(const ParallelPlan& plan, RunStart start, const Log& log);

}  // namespace trireme::train
