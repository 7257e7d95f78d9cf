#include "cli/estimate.h"

#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/quantities.h"
#include "cli/text_table.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/estimate/estimate.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;

std::string stages_in_words(const std::vector<int>& stages) {
  std::vector<std::string> numbers;
  for (const int stage : stages) numbers.push_back(text(stage));
  return join(numbers, ",");
}

void print_text(const train::Estimate& estimate) {
  const auto samples = static_cast<double>(estimate.plan.config().train.global_batch);
  std::cout << "a step: " << in_ms(estimate.step_s) << " ms, " << std::llround(samples / estimate.step_s)
            << " samples/s\n\n";
  TextTable table{.columns = {Align::kRight, Align::kLeft},
                  .rows = {{"rank", "stages", "forward ms", "backward ms", "update ms", "exchange ms",
                            "idle ms", "tensors"}}};
  table.columns.resize(table.rows.front().size(), Align::kRight);
  for (std::size_t rank = 0; rank < estimate.ranks.size(); ++rank) {
    const auto& [seconds, memory] = estimate.ranks[rank];
    table.rows.push_back({text(rank), stages_in_words(memory.stages), in_ms(seconds.forward),
                          in_ms(seconds.backward), in_ms(seconds.update), in_ms(seconds.exchange),
                          in_ms(seconds.idle),
                          human_bytes(static_cast<std::uint64_t>(memory.at_peak.total()))});
  }
  print(std::cout, table);
  const int pipelines = estimate.plan.world_size() / static_cast<int>(estimate.ranks.size());
  if (pipelines > 1) std::cout << "\nranks: of one pipeline; the other " << pipelines - 1 << " are alike\n";
  std::cout << "\na run compares itself with it: --set parallel.planned_step_s="
            << text(std::round(1e6 * estimate.step_s) / 1e6) << std::endl;
}

ordered_json as_json(const train::Estimate& estimate) {
  ordered_json ranks = ordered_json::array();
  for (const auto& [seconds, memory] : estimate.ranks) {
    ordered_json bytes;
    for (const MemoryKind kind :
         {MemoryKind::kWeights, MemoryKind::kGradients, MemoryKind::kOptimizer, MemoryKind::kActivations})
      bytes[trireme::name_of(kind)] = memory.at_peak[kind];
    bytes["total"] = memory.at_peak.total();
    ranks.push_back({{"stages", memory.stages},
                     {"forward_s", seconds.forward},
                     {"backward_s", seconds.backward},
                     {"update_s", seconds.update},
                     {"exchange_s", seconds.exchange},
                     {"overhead_s", seconds.overhead},
                     {"idle_s", seconds.idle},
                     {"peak_bytes", bytes}});
  }
  return {{"step_s", estimate.step_s},
          {"samples_per_s", static_cast<double>(estimate.plan.config().train.global_batch) / estimate.step_s},
          {"cuts", estimate.plan.cuts()},
          {"ranks_of_a_pipeline", ranks}};
}

}  // namespace

int run_estimate(const Home& home, const EstimateArguments& arguments) {
  const auto config = train::load_run_config(arguments.ranks.file, arguments.ranks.overrides, home.registry);
  const auto print_estimate = [&](const train::ParallelPlan& plan, const train::Measurements& measured) {
    const train::Estimate estimate = train::estimate(plan, measured, train::weights_memory(plan, measured));
    if (arguments.json)
      std::cout << as_json(estimate).dump(2) << std::endl;
    else
      print_text(estimate);
  };
  if (!arguments.measurements.empty()) {
    const int ranks = arguments.ranks.num_ranks == 0 ? 1 : arguments.ranks.num_ranks;
    const train::ParallelPlan plan = train::resolve_plan(config, ranks);
    print_estimate(plan, train::form_of(train::read_measurements(arguments.measurements), plan));
    return kExitOk;
  }
  const RankPlan ranks = plan_ranks(arguments.ranks);
  const train::ParallelPlan plan = train::check_run_config(config, ranks.world_size);
  train::check_forecast(plan);
  if (ranks.launches) {
    RankCommand command{.name = "estimate",
                        .options = {},
                        .of_launch = {"--no-prefix", "--frozen-grace", text(config.comm.timeout_s)},
                        .find_launcher = home.find_launcher};
    if (!arguments.save.empty()) command.options = {"--save", arguments.save};
    if (arguments.json) command.options.push_back("--json");
    become_launcher(arguments.ranks, command);
  }
  const auto context = comm::Context::from_environment(config.comm);
  const data::DataSource data = [&] {
    const telemetry::OwnWork work(context->status(), "opening the data");
    return train::open_data(config, context->log());
  }();
  const train::Measurements measured = train::measure_costs(plan, *context, data);
  if (!context->is_main()) return kExitOk;
  if (!arguments.save.empty()) train::write_measurements(arguments.save, {measured});
  print_estimate(plan, measured);
  return kExitOk;
}

}  // namespace trireme::cli
