#pragma once
// `trireme plan --check`: the fastest plans of a search, run for some steps on the available ranks.

#include <nlohmann/json.hpp>
#include <vector>

#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/train/estimate/step_trial.h"
#include "trireme/train/planner/plan_search.h"

namespace trireme::cli {

/// A plan with what steps of it took.
struct CheckedPlan {
  train::PlannedStep plan;
  train::StepTrial measured;
};

/// The first three that fit, and plain data parallelism, which the choice must not be slower than. `search`:
/// of rank 0; other ranks need none. Collective over the world; on rank 0 the plans, in the order of the
/// search, on others nothing. Throws what training throws.
std::vector<CheckedPlan> check_plans(const train::PlanSearch* search, const train::RunConfig& config,
                                     comm::Context& context, const data::DataSource& data);

/// With the shortest measured step. `checked` is not empty.
const CheckedPlan& fastest(const std::vector<CheckedPlan>& checked);

/// Prints a table of predicted and measured steps, and which plan was fastest. Not of an empty list.
void print_check(const std::vector<CheckedPlan>& checked, int world_size);

/// "checked" of the command's JSON.
nlohmann::ordered_json as_json(const std::vector<CheckedPlan>& checked, int world_size);

}  // namespace trireme::cli
