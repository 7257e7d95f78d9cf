#include "cli/find_batch.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/quantities.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/config/run_config.h"
#include "trireme/train/estimate/batch_search.h"
#include "trireme/train/estimate/memory_forecast.h"
#include "trireme/train/planner/measure_forms.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;

ordered_json number_or_null(double number) {
  return number > 0 ? ordered_json(number) : ordered_json(nullptr);
}

ordered_json as_json(const std::vector<train::BatchTrial>& trials) {
  ordered_json array = ordered_json::array();
  for (const train::BatchTrial& each : trials) {
    array.push_back({{"global_batch", each.global_batch},
                     {"step_s", each.step_s},
                     {"samples_per_s", each.samples_per_s()},
                     {"memory_bytes", each.memory_bytes},
                     {"efficiency", number_or_null(each.efficiency)},
                     {"goodput", number_or_null(each.goodput())}});
  }
  return array;
}

ordered_json as_json(const train::BatchSearch& search, int world_size) {
  const train::BatchTrial* best = best_goodput(search);
  const bool is_noise_finite = search.noise_scale && std::isfinite(*search.noise_scale);
  return {{"world_size", world_size},
          {"configured", search.configured},
          {"trials_are_estimates", !search.checked.empty()},
          {"trials", as_json(search.trials)},
          {"measured", as_json(search.checked)},
          {"correction", search.correction},
          {"fastest", fastest(search).global_batch},
          {"best_goodput", best != nullptr ? ordered_json(best->global_batch) : ordered_json(nullptr)},
          {"noise_scale", is_noise_finite ? ordered_json(*search.noise_scale) : ordered_json(nullptr)},
          {"memory_limit_bytes", search.memory_limit_bytes},
          {"largest_that_fits",
           search.largest_that_fits ? ordered_json(*search.largest_that_fits) : ordered_json(nullptr)}};
}

void print_head() {
  std::printf("%12s %12s %12s %14s %12s %12s\n", "global batch", "step ms", "samples/s", "memory of rank",
              "efficiency", "goodput");
}

void print_row(const train::BatchTrial& trial) {
  std::printf("%12lld %12.2f %12.0f %14s", static_cast<long long>(trial.global_batch), 1e3 * trial.step_s,
              trial.samples_per_s(), human_bytes(static_cast<std::uint64_t>(trial.memory_bytes)).c_str());
  if (trial.efficiency > 0) {
    std::printf(" %10.1f %% %12.0f\n", 100 * trial.efficiency, trial.goodput());
  } else {
    std::printf(" %12s %12s\n", "-", "-");
  }
  std::fflush(stdout);
}

void print_check(const train::BatchSearch& search) {
  if (search.checked.empty()) return;
  char factor[32];
  std::snprintf(factor, sizeof factor, "%.2f", search.correction);
  std::cout << "estimated times are multiplied by " << factor << ", as measured with " << search.configured
            << " samples\n";
  for (const train::BatchTrial& checked : search.checked) {
    if (checked.global_batch == search.configured) continue;
    const auto estimated =
        std::ranges::find(search.trials, checked.global_batch, &train::BatchTrial::global_batch);
    std::cout << "measured: a step of " << checked.global_batch << " samples took " << in_ms(checked.step_s)
              << " ms, " << in_ms(estimated->step_s) << " ms estimated ("
              << error_in_percent(estimated->step_s, checked.step_s) << "); memory "
              << in_bytes(checked.memory_bytes) << ", " << in_bytes(estimated->memory_bytes)
              << " estimated\n";
  }
}

void print_end(const train::BatchSearch& search, bool is_noise_given) {
  std::cout << "fastest: " << fastest(search).global_batch
            << ", the smallest within 2 % of the most samples per second\n";
  if (const train::BatchTrial* best = best_goodput(search)) {
    std::cout << "most efficient per second: " << best->global_batch << ", ";
    if (std::isfinite(*search.noise_scale))
      std::cout << "at a gradient noise scale of " << std::llround(*search.noise_scale) << " samples";
    else
      std::cout << "as the gradient is lost in its noise at " << search.configured << " samples";
    std::cout
        << (is_noise_given
                ? "\n"
                : "; that of the first steps, and it grows while a run learns: --noise takes what a run "
                  "with train.noise_scale_every_steps tells at its end\n");
  } else {
    std::cout << "most efficient per second: not known; " << search.why_no_noise << "\n";
  }
  std::cout << "largest that fits into " << human_bytes(static_cast<std::uint64_t>(search.memory_limit_bytes))
            << " per rank: ";
  if (search.largest_that_fits)
    std::cout << "about " << *search.largest_that_fits << " samples\n";
  else
    std::cout << "all that may be in a batch\n";
  print_check(search);
  std::cout << "rates were chosen for train.global_batch = " << search.configured
            << "; lr.scale_with_batch carries them to another batch" << std::endl;
}

/// None: the plan's memory or time cannot be estimated, or its model has no layers that could be measured.
/// `why` is the reason.
std::optional<train::MeasuredForms> costs_for(const train::ParallelPlan& plan, comm::Context& context,
                                              const data::DataSource& data, std::string& why) {
  try {
    train::check_forecast(plan);
    return train::known_or_measured(plan.config(), context, data);
  } catch (const InvalidArgument& reason) {  // on all ranks
    why = reason.what();
    return std::nullopt;
  }
}

}  // namespace

int run_find_batch(const Home& home, const FindBatchArguments& arguments) {
  const RankPlan ranks = plan_ranks(arguments.ranks);
  const auto config = train::load_run_config(arguments.ranks.file, arguments.ranks.overrides, home.registry);
  const train::ParallelPlan plan = train::check_run_config(config, ranks.world_size);
  if (ranks.launches) {
    RankCommand command{.name = "find-batch",
                        .options = {},
                        .of_launch = {"--no-prefix", "--frozen-grace", text(config.comm.timeout_s)},
                        .find_launcher = home.find_launcher};
    const auto add = [&](const char* option, const std::string& value) {
      command.options.insert(command.options.end(), {option, value});
    };
    if (arguments.max_samples > 0) add("--most", text(arguments.max_samples));
    if (arguments.memory_limit_gib > 0) add("--memory-limit", text(arguments.memory_limit_gib));
    if (arguments.noise_scale > 0) add("--noise", text(arguments.noise_scale));
    if (arguments.json) command.options.push_back("--json");
    become_launcher(arguments.ranks, command);
  }
  const auto context = comm::Context::from_environment(config.comm);
  const data::DataSource data = [&] {
    const telemetry::OwnWork work(context->status(), "opening the data");
    return train::open_data(config, context->log());
  }();
  const bool prints = context->is_main() && !arguments.json;
  train::BatchSearchOptions options{
      .max_samples = arguments.max_samples,
      .memory_limit_bytes = static_cast<std::int64_t>(arguments.memory_limit_gib * (std::int64_t{1} << 30))};
  if (arguments.noise_scale > 0) options.noise_scale = arguments.noise_scale;
  std::string why_measured;
  const std::optional<train::MeasuredForms> costs = costs_for(plan, *context, data, why_measured);
  if (costs) options.costs = &*costs;
  if (prints) options.on_trial = print_row;
  if (prints) print_head();
  const train::BatchSearch search = train::search_batches(plan, *context, data, options);
  if (!search.why_measured.empty()) why_measured = search.why_measured;
  if (context->is_main() && !why_measured.empty())
    std::cerr << "steps of each batch were measured, not estimated: " << why_measured << "\n";
  if (prints) print_end(search, arguments.noise_scale > 0);
  if (context->is_main() && arguments.json)
    std::cout << as_json(search, context->world_size()).dump(2) << std::endl;
  return kExitOk;
}

}  // namespace trireme::cli
