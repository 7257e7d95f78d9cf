#pragma once
// parallel.plan = "auto": the plan of a run, chosen at its start on the available ranks.

#include <filesystem>
#include <optional>
#include <string>

#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/train/plan/parallel_plan.h"
#include "trireme/train/planner/plan_review.h"
#include "trireme/train/planner/plan_search.h"
#include "trireme/train/report/run_recorder.h"
#include "trireme/train/run/recovery.h"
#include "trireme/train/run/run.h"

namespace trireme::train {

struct ChosenPlan {
  ParallelPlan plan;
  std::string told = {};                                 ///< how it was chosen, in words; empty: it was not
  std::optional<PlannedStep> prediction = std::nullopt;  ///< on rank 0, where costs are known
};

/// Returns `open`, unless `config` has parallel.plan = "auto". Then it returns the plan in the run's folder
/// if rank 0 resumes (its `resume_mode` counts) on the same number of ranks. Otherwise it returns the fastest
/// plan within the memory of the host. Costs are read if this machine has cached them, and measured
/// otherwise. The same on every rank. Collective. Throws as search_plans(); DataError: a plan in the folder
/// that cannot be read.
ChosenPlan choose_plan(const RunConfig& config, const ParallelPlan& open, comm::Context& context,
                       const data::DataSource& data, const RunPlan& run, ResumeMode resume_mode);

/// Writes the plan into the run's folder, as `trireme train --plan` reads it, and notes it. On rank 0.
void write_plan(const ChosenPlan& chosen, const std::filesystem::path& file, RunRecorder& recorder);

/// Of so many steps of a rank, without waiting for data.
MeasuredStep mean_step(const StepTimes& steps, int pipeline_rank, const MemoryUse& at_peak);

/// The estimate compared with the mean of `steps` steps, of a plan that the run has chosen; costs that are
/// kept on this machine learn from it. `memory` is the rank's. None on other ranks than 0, and where the
/// estimate or the steps are missing. Collective.
std::optional<PlanReview> review_run(const ChosenPlan& chosen, const RunConfig& config,
                                     comm::Context& context, const RunPlan& run, const StepTimes& steps,
                                     const MemoryUse& memory);

}  // namespace trireme::train
