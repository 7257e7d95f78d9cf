#pragma once
// How a plan is decided: resolve_plan() without the search for the nearest plan that works.

#include <optional>

#include "trireme/train/plan/made_schedules.h"
#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {

/// `schedules`: keeps searched ones from one plan to the next; null: none are kept. Throws InvalidArgument, a
/// PlanError where something is known that may help; DataError.
ParallelPlan make_plan(const RunConfig& config, int world_size, const std::optional<ModelShape>& model,
                       MadeSchedules* schedules = nullptr);

}  // namespace trireme::train
