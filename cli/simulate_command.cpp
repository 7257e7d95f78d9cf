#include <algorithm>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/goodput.h"
#include "cli/schedule_arguments.h"
#include "trireme/base/error.h"
#include "trireme/schedule/lowering.h"
#include "trireme/schedule/simulate.h"

namespace trireme::cli {
namespace {

/// The default of zb-1p and zb-2p. The models of arXiv 2401.10241 keep 0.37 and 0.43 of an activation for W
/// (its table 1: 32h of 34h + 5as).
constexpr double kKeptInSearch = 0.44;

struct SimulateArguments : ScheduleArguments {
  GoodputArguments goodput;
  bool json = false;
};

void print_json(const schedule::Program& program, const schedule::Timeline& timeline) {
  const nlohmann::ordered_json json = {{"schedule", program.name},
                                       {"cost", timeline.cost},
                                       {"makespan", timeline.makespan},
                                       {"work", timeline.work},
                                       {"bubble_rate", timeline.bubble_rate},
                                       {"bubble_to_work", timeline.bubble_to_work},
                                       {"peak_activations", timeline.peak_memory},
                                       {"peak_microbatches", timeline.peak_activations},
                                       {"peak_weight_versions", timeline.peak_weight_versions}};
  std::cout << json.dump(1) << "\n";
}

void print_text(const schedule::Program& program, const schedule::Timeline& timeline, double kept) {
  std::cout << program.name << ": " << program.ranks.size() << " ranks, " << program.num_stages << " stages, "
            << program.num_microbatches << " micro-batches\n"
            << "  cost       " << timeline.cost
            << "  (longest time of a rank from its first start to its last end)\n"
            << "  makespan   " << timeline.makespan << "\n"
            << "  work       " << timeline.work << "\n"
            << std::fixed << std::setprecision(4) << "  bubble     " << timeline.bubble_rate
            << " of the cost, " << timeline.bubble_to_work << " of the work\n"
            << std::defaultfloat << std::setprecision(6);
  std::cout << "  rank  activations  micro-batches held  weight versions";
  if (kept < 1) std::cout << "   (an activation counts " << kept << " between I and W)";
  std::cout << "\n";
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    std::cout << "  " << std::left << std::setw(6) << rank << std::setw(13) << timeline.peak_memory[rank]
              << std::setw(20) << timeline.peak_activations[rank] << timeline.peak_weight_versions[rank]
              << "\n";
  }
}

/// With reductions and updates, if they have costs.
schedule::Program priced_program(const SimulateArguments& given) {
  schedule::Program program = program_of(given);
  const bool has_price = given.reduce > 0 || given.update > 0;
  if (!has_price || program.update_every > 0 || schedule::form_of(program) != schedule::Form::kOrder)
    return program;
  return schedule::lower(program);
}

/// A searched order keeps the limit itself; other orders are checked here.
void check_limit(const schedule::Program& program, const schedule::Timeline& timeline, double limit) {
  const auto peak = std::max_element(timeline.peak_memory.begin(), timeline.peak_memory.end());
  require(limit <= 0 || *peak <= limit + 1e-9, "schedule '", program.name, "': rank ",
          peak - timeline.peak_memory.begin(), " holds ", *peak, " activations, over --memory-limit ", limit,
          "; take a schedule that needs less (zb-1p, v-half, v-min) or raise the limit");
}

int run_simulation(SimulateArguments given) {
  if (given.goodput.asked) {
    print_goodput(given.goodput, given.json ? ReportFormat::kJson : ReportFormat::kText);
    return kExitOk;
  }
  if (given.kept_for_weight < 0 && (given.name == "zb-1p" || given.name == "zb-2p")) {
    given.kept_for_weight = kKeptInSearch;
  }
  const schedule::Program program = priced_program(given);
  schedule::validate(program, {.form = schedule::form_of(program)});
  const schedule::Costs costs = costs_of(given);
  const schedule::Timeline timeline = schedule::simulate(program, costs);
  check_limit(program, timeline, given.options.memory_limit);
  given.json ? print_json(program, timeline) : print_text(program, timeline, costs.kept_for_weight);
  return kExitOk;
}

std::function<int()> declare_simulate(CLI::App& app) {
  auto given = std::make_shared<SimulateArguments>();
  app.add_option("--schedule", given->name, "A schedule; the names: trireme schedule")->type_name("NAME");
  app.add_option("--file", given->file, "A program of your own instead")->type_name("FILE.csv");
  declare_size(app, *given);
  declare_file_facts(app, *given);
  declare_costs(app, *given);
  declare_goodput(app, given->goodput);
  app.add_flag("--json", given->json, "As JSON");
  return [given] { return run_simulation(*given); };
}

}  // namespace

Command simulate_command() {
  return {.name = "simulate",
          .summary = "Simulate a pipeline step (time, bubble, memory), or the goodput of a job under failures",
          .usage = "--schedule NAME|--goodput [OPTIONS]",
          .examples =
              "  trireme simulate --schedule 1f1b --ranks 4 --microbatches 8\n"
              "  trireme simulate --schedule zb-2p --ranks 8 --microbatches 24 --forward 18522 \\\n"
              "      --backward-input 18086 --backward-weight 9337 --hop 601 --memory-limit 16 --json\n"
              "  trireme simulate --file my_schedule.csv --hop 0.1\n"
              "  trireme simulate --goodput --hosts 2048 --mtbf-hours 10000 --save-s 20 --restart-s 300 "
              "--elastic\n",
          .declare = declare_simulate};
}

}  // namespace trireme::cli
