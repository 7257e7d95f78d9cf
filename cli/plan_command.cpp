#include <algorithm>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/command.h"
#include "cli/numbers.h"
#include "cli/plan_steps.h"
#include "trireme/base/error.h"
#include "trireme/plan/plan.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;

struct ProfileSearch {
  std::string profile;
  std::string workers;
  std::string bandwidth;
  bool straight = false;
  std::string method = plan::partitioners().front().name;
  bool json = false;
  bool toml = false;
  StepOptions step;
};

ordered_json as_json(const StepPlan& step) {
  return {{"pipeline", step.pipeline},
          {"data", step.data},
          {"microbatches", step.microbatches},
          {"cuts", step.cuts},
          {"step_s", step.step_s}};
}

ordered_json as_json(const plan::Stage& stage, const plan::Profile& profile) {
  return {{"first_state", stage.first_state},
          {"last_state", stage.last_state},
          {"ends_behind", profile.states()[stage.last_state].name},
          {"replicas", stage.replicas},
          {"compute_time_s", stage.work.compute_s},
          {"time_s", stage.time_s},
          {"transfer_time_s", stage.transfer_s},
          {"parameter_bytes", stage.work.parameter_bytes},
          {"activation_bytes", stage.work.activation_bytes},
          {"output_bytes", profile.output_bytes(stage.last_state + 1)}};
}

void print_json(const plan::Plan& plan, const plan::Profile& profile, const std::vector<StepPlan>& steps) {
  ordered_json stages = ordered_json::array();
  for (const plan::Stage& stage : plan.stages) stages.push_back(as_json(stage, profile));
  ordered_json report = {{"method", plan.method},
                         {"pipeline_time_s", plan.pipeline_time_s},
                         {"transfer_time_s", plan.transfer_time_s},
                         {"data_parallel_time_s", plan.data_parallel_time_s},
                         {"stages", std::move(stages)}};
  for (const StepPlan& step : steps) report["steps"].push_back(as_json(step));
  std::cout << report.dump(2) << "\n";
}

std::string milliseconds(double seconds) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(3) << seconds * 1e3 << " ms";
  return std::move(out).str();
}

std::string bytes(double count) {
  constexpr double kMost = 1e18;  // fits into a 64-bit integer
  return human_bytes(static_cast<std::uint64_t>(std::min(count, kMost)));
}

using Row = std::vector<std::string>;

Row row_of(std::size_t number, const plan::Stage& stage, const plan::Profile& profile) {
  return {text(number),
          text(stage.first_state, "-", stage.last_state),
          text(stage.replicas),
          milliseconds(stage.work.compute_s),
          milliseconds(stage.time_s),
          milliseconds(stage.transfer_s),
          bytes(stage.work.parameter_bytes),
          bytes(stage.work.activation_bytes),
          profile.states()[stage.last_state].name};
}

/// Right-aligned columns, except the last one: a name.
void print_rows(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const Row& row : rows) {
    for (std::size_t i = 0; i + 1 < row.size(); ++i)
      std::cout << std::string(widths[i] - row[i].size() + (i == 0 ? 0 : 2), ' ') << row[i];
    std::cout << "  " << row.back() << "\n";
  }
}

void print_table(const plan::Plan& plan, const plan::Profile& profile) {
  std::vector<Row> rows = {{"stage", "states", "replicas", "compute", "time", "transfer", "parameters",
                            "activations", "ends behind"}};
  for (const plan::Stage& stage : plan.stages) rows.push_back(row_of(rows.size() - 1, stage, profile));
  print_rows(rows);
  std::cout << "\npipeline       " << milliseconds(plan.pipeline_time_s) << " per mini-batch, slowest link "
            << milliseconds(plan.transfer_time_s) << " (" << plan.method << ")\ndata parallel  "
            << milliseconds(plan.data_parallel_time_s) << " per mini-batch\n";
  if (plan.transfer_time_s > plan.pipeline_time_s)
    std::cout
        << "the slowest link takes longer than any stage; methods that count links: pipedream-links, time\n";
}

std::string joined(const std::vector<std::size_t>& cuts) {
  std::string all;
  for (const std::size_t cut : cuts) all += text(all.empty() ? "" : " ", cut);
  return all;
}

void print_steps(const std::vector<StepPlan>& steps, const StepOptions& options) {
  if (steps.empty()) return;
  const StepPlan& best = steps.front();
  std::cout << "\na step of " << best.microbatches * best.data << " micro-batches, as trireme train runs it ("
            << options.schedule << ", flushed after each step):\n";
  std::vector<Row> rows = {{"pipeline", "data", "micro-batches", "step", "cuts before"}};
  for (const StepPlan& step : steps)
    rows.push_back({text(step.pipeline), text(step.data), text(step.microbatches), milliseconds(step.step_s),
                    step.cuts.empty() ? "-" : joined(step.cuts)});
  print_rows(rows);
  std::cout << "fastest: parallel.pipeline = " << best.pipeline << ", parallel.data = " << best.data
            << "; --toml prints what trireme train --plan FILE takes\n";
}

/// The end of the help text.
std::string methods() {
  std::ostringstream out;
  for (const plan::Partitioner& partitioner : plan::partitioners())
    out << "  " << std::left << std::setw(22) << partitioner.name << partitioner.summary << "\n";
  return std::move(out).str();
}

int plan_of_profile(const ProfileSearch& given) {
  const plan::Profile profile = plan::read_profile(given.profile);
  const plan::PlanOptions options = {.levels = plan::parse_levels(given.workers, given.bandwidth),
                                     .straight = given.straight};
  // The simulation of steps needs equal links.
  const bool has_steps = options.levels.size() == 1;
  require(has_steps || !given.toml, "--toml takes one level of workers, found ", options.levels.size(),
          "; name all of them, and the bandwidth of the slowest link");
  std::vector<StepPlan> steps;
  StepOptions step = given.step;
  if (has_steps) {
    step.num_workers = options.levels.front().num_workers;
    step.bandwidth_bytes_per_s = options.levels.front().bandwidth_bytes_per_s;
  }
  if (given.toml) {
    std::cout << to_toml(step_plans(profile, step).front(), profile, step);
    return kExitOk;
  }
  const plan::Plan plan = plan::make_plan(profile, options, given.method);
  if (has_steps) steps = step_plans(profile, step);
  if (given.json) {
    print_json(plan, profile, steps);
  } else {
    print_table(plan, profile);
    print_steps(steps, step);
  }
  return kExitOk;
}

}  // namespace

Command plan_command(std::function<int(const PlanArguments&)> run) {
  const auto declare = [run = std::move(run)](CLI::App& app) -> std::function<int()> {
    auto given = std::make_shared<ProfileSearch>();
    auto search = std::make_shared<PlanArguments>();
    declare_ranks(app, search->ranks);
    app.get_option("file")->required(false);
    app.add_option("--memory", search->memory_gib,
                   "Memory of a rank in GiB (its share of what the host has left)")
        ->type_name("GIB")
        ->check(above_zero());
    app.add_option("--budget", search->budget_s,
                   "End the search after so many seconds (a fixed amount of work)")
        ->type_name("SECONDS")
        ->check(above_zero());
    CLI::Option* read = app.add_option("--measurements", search->measurements,
                                       "Read the costs from this file; no rank is started")
                            ->type_name("FILE.json");
    CLI::Option* save = app.add_option("--save", search->save, "Write the measured costs to this file")
                            ->type_name("FILE.json")
                            ->excludes(read);
    CLI::Option* measure =
        app.add_flag("--measure", search->measures, "Measure, even if costs are kept for this machine")
            ->excludes(read);
    CLI::Option* check =
        app.add_flag("--check", search->checks,
                     "Run the three fastest plans and data parallelism for some steps, and compare")
            ->excludes(read);
    CLI::Option* links =
        app.add_option("--links", search->links,
                       "Plan for the links in this output of trireme topology --json, not for those measured")
            ->type_name("FILE.json")
            ->excludes(check);
    CLI::Option* machine =
        app.add_option("--machine", search->machine,
                       "Plan for the machine that this file describes; nothing is measured")
            ->type_name("FILE.toml");
    for (CLI::Option* other : {read, save, measure, check, links}) machine->excludes(other);
    CLI::Option* vocabulary =
        app.add_option("--vocabulary", search->vocabulary, "Tokens that the model knows, with --machine")
            ->type_name("N")
            ->check(above_zero());
    vocabulary->needs(machine);
    machine->needs(vocabulary);
    CLI::Option* page = app.add_option("--page", search->page,
                                       "Write a page with all plans, and time against memory as a chart")
                            ->type_name("FILE.html");
    CLI::Option* all = app.add_flag("--all", search->shows_all, "Show all plans");
    CLI::Option* batch = app.add_flag("--free-batch", search->frees_batch,
                                      "Compare global batches, too; another batch changes the training");
    for (CLI::Option* other : {check, page, all}) batch->excludes(other);
    CLI::Option* profile =
        app.add_option("--profile", given->profile, "Times and bytes of the model's layers, as CSV")
            ->type_name("FILE.csv");
    CLI::Option* workers =
        app.add_option("--workers", given->workers, "Workers per level of links, innermost first: 4, or 8,2")
            ->type_name("N[,N...]");
    CLI::Option* bandwidth =
        app.add_option("--bandwidth", given->bandwidth, "Bytes per second between workers, for each level")
            ->type_name("B[,B...]");
    profile->needs(workers, bandwidth)->excludes(app.get_option("file"));
    workers->needs(profile);
    bandwidth->needs(profile);
    app.add_flag("--straight", given->straight, "One worker per stage, no replicas")->needs(profile);
    app.add_option("--method", given->method, "How to cut, see below (" + given->method + ")")
        ->type_name("NAME")
        ->needs(profile);
    app.add_option("--schedule", given->step.schedule, "Of the steps that are compared (1f1b)")
        ->type_name("NAME")
        ->needs(profile);
    app.add_option("--microbatches", given->step.num_microbatches,
                   "Of a step, over all workers (four per worker)")
        ->type_name("M")
        ->check(above_zero())
        ->needs(profile);
    app.add_flag("--toml", given->toml, "Print the fastest plan as keys for trireme train --plan")
        ->excludes(batch);
    app.add_flag("--json", given->json, "As JSON");
    return [given, search, run] {
      search->json = given->json;
      search->toml = given->toml;
      if (!given->profile.empty()) return plan_of_profile(*given);
      require(!search->ranks.file.empty(),
              "expected a run's configuration (trireme plan FILE.toml -n N), or --profile FILE.csv");
      return run(*search);
    };
  };
  return {
      .name = "plan",
      .summary = "Find the fastest way to train a model on N ranks, or partition a profile into stages",
      .usage =
          "FILE.toml -n N [OPTIONS] | --profile FILE.csv --workers N[,N...] --bandwidth B[,B...] [OPTIONS]",
      .examples =
          "  trireme plan examples/gpt_char.toml --set data.path=TEXT.txt -n 4\n"
          "  trireme plan examples/gpt_char.toml --set data.path=TEXT.txt -n 4 --memory 0.2 --toml > "
          "plan.toml\n"
          "  trireme plan examples/gpt_char.toml --set data.path=TEXT.txt -n 4 --links links.json\n"
          "  trireme plan examples/gpt_large.toml --set data.path=TEXT.txt -n 3072 --vocabulary 51200 "
          "--machine "
          "examples/machines/a100_selene.toml\n"
          "  trireme plan --profile vgg16.csv --workers 4 --bandwidth 1e9\n"
          "  trireme plan --profile vgg16.csv --workers 4,4 --bandwidth 1e10,1.25e9 --json\n"
          "  trireme plan --profile vgg16.csv --workers 8 --bandwidth 1e9 --method time\n"
          "  trireme plan --profile gpt.csv --workers 4 --bandwidth 1e10 --toml > plan.toml\n\nMethods:\n" +
          methods(),
      .declare = declare};
}

}  // namespace trireme::cli
