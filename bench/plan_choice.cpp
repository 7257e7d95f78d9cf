// Question: is the plan that the planner chooses the fastest one? On each rank of a launched job: searches
// for plans, trains with the first ones and with others evenly by rising estimate, and then again in turns
// with those that were fastest. Rank 0 prints JSON.
//
//   trireme launch -n 2 -- bench_plan_choice FILE.toml [--set KEY=VALUE]... [--plans N] [--trial-s S]
//     [--rounds N] [--smoke]

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

#include "trireme/base/available_memory.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/median.h"
#include "trireme/base/memory_ledger.h"
#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/estimate/step_trial.h"
#include "trireme/train/planner/measure_forms.h"
#include "trireme/train/planner/plan_search.h"

namespace {

using namespace trireme;

struct Settings {
  std::string file;
  std::vector<std::string> overrides;
  std::size_t plans = 40;
  double trial_s = 0.5;
  int rounds = 3;
  std::size_t finalists = 4;
  bool smoke = false;
};

/// A plan, and what its trials have measured.
struct TriedPlan {
  std::size_t place = 0;  ///< by estimate
  train::PlannedStep plan;
  double first_s = 0;
  std::vector<double> seconds = {};  ///< of finalists
  std::int64_t memory_bytes = 0;     ///< of tensors

  double step_s() const { return seconds.empty() ? first_s : median(seconds); }
  std::int64_t promised_bytes() const {
    std::int64_t most = 0;
    for (const train::EstimateOfRank& rank : plan.ranks)
      most = std::max({most, rank.memory.at_peak.total(), rank.memory.first_step_bytes});
    return most;
  }
};

bool is_data_parallelism(const train::PlannedStep& plan) {
  return std::ranges::all_of(plan.settings, [](const train::PlannedSetting& each) {
    return each.first == "parallel.data" || each.first == "parallel.planned_step_s";
  });
}

/// Half of them the fastest, half evenly over the others, and data parallelism.
std::vector<TriedPlan> sample(const train::PlanSearch& search, std::size_t count) {
  const std::size_t all = search.plans.size(), first = std::min(all, (count + 1) / 2);
  std::set<std::size_t> places;
  for (std::size_t i = 0; i < first; ++i) places.insert(i);
  const std::size_t rest = std::min(all - first, count - std::min(count, first));
  for (std::size_t i = 0; i < rest; ++i) places.insert(first + (i * (all - first)) / rest);
  for (std::size_t i = 0; i < all; ++i) {
    if (is_data_parallelism(search.plans[i])) places.insert(i);
  }
  std::vector<TriedPlan> plans;
  for (const std::size_t place : places) plans.push_back({.place = place, .plan = search.plans[place]});
  return plans;
}

std::string from_main(comm::Context& context, const std::string& words) {
  return context.world().all_gather_text(context.is_main() ? words : std::string()).front();
}

class Trials {
 public:
  Trials(const train::RunConfig& config, comm::Context& context, const data::DataSource& data)
      : config_(config), context_(context), data_(data) {}

  /// On all ranks; ranks but the first pass null. Memory is without that which groups keep of earlier trials.
  train::StepTrial run(const train::PlannedStep* plan, double trial_s) {
    const std::string name = "the plan of rank 0";
    const std::string settings = from_main(context_, plan == nullptr ? "" : train::to_toml(plan->settings));
    const train::RunConfig planned =
        train::with_settings(config_, train::parse_settings(settings, name), name);
    const auto kept = static_cast<double>(MemoryLedger::of_process().now().total());
    const double kept_bytes = train::agreed(context_, kept, comm::ReduceOp::kMax);
    train::StepTrial trial =
        train::time_steps(train::resolve_plan(planned, context_.world_size()), context_, data_, trial_s);
    trial.memory_bytes -= static_cast<std::int64_t>(kept_bytes);
    return trial;
  }

  /// The number that rank 0 has.
  std::size_t agreed_size(std::size_t mine) {
    return static_cast<std::size_t>(std::stoull(from_main(context_, std::to_string(mine))));
  }

 private:
  const train::RunConfig& config_;
  comm::Context& context_;
  const data::DataSource& data_;
};

/// Those that were fastest, the chosen one and data parallelism.
std::set<std::size_t> finalists(const std::vector<TriedPlan>& plans, std::size_t count) {
  std::vector<std::size_t> order(plans.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return plans[i].first_s; });
  std::set<std::size_t> chosen(order.begin(),
                               order.begin() + static_cast<std::ptrdiff_t>(std::min(count, order.size())));
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (plans[i].place == 0 || is_data_parallelism(plans[i].plan)) chosen.insert(i);
  }
  return chosen;
}

/// Spearman's, without ties.
double order_correlation(const std::vector<TriedPlan>& plans) {
  const auto n = static_cast<double>(plans.size());
  double sum = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {  // in the order of estimates
    const auto place = std::ranges::count_if(
        plans, [&](const TriedPlan& other) { return other.first_s < plans[i].first_s; });
    sum += std::pow(static_cast<double>(i) - static_cast<double>(place), 2);
  }
  return n < 2 ? 1 : 1 - 6 * sum / (n * (n * n - 1));
}

nlohmann::ordered_json as_json(const TriedPlan& tried, int world_size) {
  return {{"plan", train::in_words(tried.plan.config, world_size)},
          {"place", tried.place},
          {"estimated_s", tried.plan.step_s},
          {"measured_s", tried.step_s()},
          {"promised_bytes", tried.promised_bytes()},
          {"measured_bytes", tried.memory_bytes}};
}

nlohmann::ordered_json result(const std::vector<TriedPlan>& plans, const std::set<std::size_t>& last,
                              const train::PlanSearch& search, double search_s, int world_size) {
  std::size_t fastest = *last.begin(), plain = plans.size();
  for (const std::size_t i : last) {
    if (plans[i].step_s() < plans[fastest].step_s()) fastest = i;
    if (is_data_parallelism(plans[i].plan)) plain = i;
  }
  nlohmann::ordered_json json = {{"ranks", world_size},
                                 {"found", search.plans.size()},
                                 {"frontier", search.frontier().size()},
                                 {"search_s", search_s},
                                 {"tried", plans.size()},
                                 {"chosen", as_json(plans.front(), world_size)},
                                 {"fastest", as_json(plans[fastest], world_size)},
                                 {"order", order_correlation(plans)}};
  if (plain < plans.size()) json["data_parallelism"] = as_json(plans[plain], world_size);
  for (const TriedPlan& each : plans) json["plans"].push_back(as_json(each, world_size));
  return json;
}

void run(const Settings& settings) {
  const train::RunConfig config = train::load_run_config(settings.file, settings.overrides);
  const auto context = comm::Context::from_environment(config.comm);
  const data::DataSource data = train::open_data(config, context->log());
  const train::MeasuredForms measured = train::measure_forms(config, *context, data);
  const int world_size = context->world_size();
  train::PlanSearch search;
  std::vector<TriedPlan> plans;
  double search_s = 0;
  if (context->is_main()) {
    const double began_s = now_s();
    search = train::search_plans(
        config, world_size, measured,
        {.limit_bytes = static_cast<std::int64_t>(available_memory().bytes) / world_size});
    search_s = now_s() - began_s;
    require(!search.plans.empty(), "no plan fits into the memory of this host");
    plans = sample(search, settings.plans);
  }
  Trials trials(config, *context, data);
  for (std::size_t i = 0, count = trials.agreed_size(plans.size()); i < count; ++i) {
    const train::StepTrial trial =
        trials.run(context->is_main() ? &plans[i].plan : nullptr, settings.trial_s);
    if (!context->is_main()) continue;
    plans[i].first_s = trial.step_s;
    plans[i].memory_bytes = trial.memory_bytes;
  }
  std::set<std::size_t> last;
  if (context->is_main()) last = finalists(plans, settings.finalists);
  const std::size_t count = trials.agreed_size(last.size());
  const std::vector<std::size_t> places(last.begin(), last.end());
  for (int round = 0; round < settings.rounds; ++round) {
    for (std::size_t i = 0; i < count; ++i) {
      const train::StepTrial trial =
          trials.run(context->is_main() ? &plans[places[i]].plan : nullptr, 2 * settings.trial_s);
      if (context->is_main()) plans[places[i]].seconds.push_back(trial.step_s);
    }
  }
  if (context->is_main()) std::cout << result(plans, last, search, search_s, world_size).dump() << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Measures whether the planner's choice is the fastest plan");
  app.add_option("file", settings.file, "Configuration");
  app.add_option("--set", settings.overrides, "KEY=VALUE")->allow_extra_args(false);
  app.add_option("--plans", settings.plans, "Plans to measure");
  app.add_option("--trial-s", settings.trial_s, "Seconds of steps of each plan");
  app.add_option("--rounds", settings.rounds, "Repetitions of the fastest ones");
  app.add_flag("--smoke", settings.smoke, "A short run");
  CLI11_PARSE(app, argc, argv);
  if (settings.smoke) {
    settings.plans = 2;
    settings.trial_s = 0;
    settings.rounds = 1;
  }
  try {
    run(settings);
  } catch (const std::exception& error) {
    std::cerr << "bench_plan_choice: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
