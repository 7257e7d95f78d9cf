#pragma once
// Common steps of ranks before a run: compare configurations, take the folder, find the checkpoint to resume.

#include <memory>

#include "trireme/comm/context.h"
#include "trireme/train/run/recovery.h"
#include "trireme/train/run/run.h"
#include "trireme/train/run/run_folder.h"

namespace trireme::train {

/// Ranks have to have the same configuration. Processes that have trained in an earlier world of an elastic job
/// are right: they throw CommError, which only ends this world, and of the others those that differ from them
/// throw InvalidArgument. Without such processes all throw InvalidArgument. Collective.
void check_same_config(const RunConfig& config, comm::Context& context, const RunPlan& plan);

/// The data of the run: the plan's, those of an earlier world of this process, or newly opened.
data::DataSource open_data_of(const RunConfig& config, comm::Context& context, const RunPlan& plan);

/// The folder's lock on rank 0, null on the others. It is taken before anything is read or made, and released
/// after everything. Collective. Throws DataError: nothing to resume; as RunLock().
std::unique_ptr<RunLock> lock_folder(const RunConfig& config, comm::Context& context, RunStart start);

/// Whether the launcher has restarted the world of the run in the folder.
bool is_restart(const comm::Context& context, const RunLock& lock);

/// A restart resumes checkpoints of the start that it belongs to, and of no earlier run. `lock` is rank 0's,
/// whose answer counts.
ResumeMode resume_mode_of(const RunPlan& plan, const comm::Context& context, const RunLock* lock);

}  // namespace trireme::train
