#include "cli/plan_check.h"

#include <algorithm>
#include <cmath>
#include <iostream>

#include "cli/quantities.h"
#include "cli/text_table.h"
#include "trireme/base/error.h"
#include "trireme/train/planner/planned_keys.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kPlansChecked = 3;
constexpr double kCheck_s = 1;  ///< duration of the steps of each plan

/// Bytes of tensors on the rank with most of them, as a trial measures them.
std::int64_t predicted_bytes(const train::PlannedStep& plan) {
  std::int64_t most = 0;
  for (const train::EstimateOfRank& rank : plan.ranks) most = std::max(most, rank.memory.at_peak.total());
  return most;
}

std::vector<const train::PlannedStep*> plans_to_check(const train::PlanSearch& search) {
  std::vector<const train::PlannedStep*> plans;
  for (std::size_t i = 0; i < std::min(kPlansChecked, search.plans.size()); ++i)
    plans.push_back(&search.plans[i]);
  const train::PlannedStep* data_parallel = search.data_parallel();
  if (data_parallel != nullptr && std::ranges::find(plans, data_parallel) == plans.end())
    plans.push_back(data_parallel);
  return plans;
}

std::string words_from_main(comm::Context& context, const std::string& words) {
  return context.world().all_gather_text(context.is_main() ? words : std::string()).front();
}

}  // namespace

std::vector<CheckedPlan> check_plans(const train::PlanSearch* search, const train::RunConfig& config,
                                     comm::Context& context, const data::DataSource& data) {
  std::vector<CheckedPlan> checked;
  const std::vector<const train::PlannedStep*> plans =
      search != nullptr ? plans_to_check(*search) : std::vector<const train::PlannedStep*>();
  for (std::size_t i = 0;; ++i) {
    const train::PlannedStep* plan = i < plans.size() ? plans[i] : nullptr;
    // A plan may have no keys, so the text begins with a mark.
    const std::string settings =
        words_from_main(context, plan == nullptr ? "" : "# plan\n" + train::to_toml(plan->settings));
    if (settings.empty()) break;
    const std::string name = "the plan of rank 0";
    const train::RunConfig with_plan =
        train::with_settings(config, train::parse_settings(settings, name), name);
    const train::StepTrial measured =
        train::time_steps(train::resolve_plan(with_plan, context.world_size()), context, data, kCheck_s);
    if (plan != nullptr) checked.push_back({*plan, measured});
  }
  return checked;
}

const CheckedPlan& fastest(const std::vector<CheckedPlan>& checked) {
  require(!checked.empty(), "no plan was checked");
  return *std::ranges::min_element(checked, {}, [](const CheckedPlan& each) { return each.measured.step_s; });
}

void print_check(const std::vector<CheckedPlan>& checked, int world_size) {
  TextTable table{
      .columns = {Align::kRight, Align::kRight, Align::kRight, Align::kRight, Align::kRight, Align::kLeft},
      .rows = {{"step ms", "measured", "error", "tensors", "measured", "plan"}}};
  for (const CheckedPlan& each : checked) {
    table.rows.push_back({in_ms(each.plan.step_s), in_ms(each.measured.step_s),
                          error_in_percent(each.plan.step_s, each.measured.step_s),
                          in_bytes(predicted_bytes(each.plan)), in_bytes(each.measured.memory_bytes),
                          train::in_words(each.plan.config, world_size)});
  }
  std::cout << "\nchecked: the fastest plans and data parallelism, run for some steps\n";
  cli::print(std::cout, table);
  const CheckedPlan& best = fastest(checked);
  const double gain = 100 * (checked.front().measured.step_s / best.measured.step_s - 1);
  if (&best == &checked.front())
    std::cout << "the plan that was estimated as fastest is the fastest of them" << std::endl;
  else
    std::cout << "fastest of them: " << train::in_words(best.plan.config, world_size) << ", by "
              << std::llround(gain) << " %; --toml prints its keys" << std::endl;
}

ordered_json as_json(const std::vector<CheckedPlan>& checked, int world_size) {
  ordered_json plans = ordered_json::array();
  for (const CheckedPlan& each : checked) {
    ordered_json settings = ordered_json::object();
    for (const auto& [key, value] : each.plan.settings) settings[key] = value;
    plans.push_back({{"plan", train::in_words(each.plan.config, world_size)},
                     {"settings", settings},
                     {"step_s", each.plan.step_s},
                     {"measured_step_s", each.measured.step_s},
                     {"tensor_bytes", predicted_bytes(each.plan)},
                     {"measured_tensor_bytes", each.measured.memory_bytes}});
  }
  return plans;
}

}  // namespace trireme::cli
