#include "cli/plan.h"

#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/plan_batches.h"
#include "cli/plan_check.h"
#include "cli/plan_fit.h"
#include "cli/plan_links.h"
#include "cli/plan_page.h"
#include "cli/quantities.h"
#include "cli/text_table.h"
#include "trireme/base/available_memory.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/comm/context.h"
#include "trireme/comm/on_every_rank.h"
#include "trireme/data/dataset.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/machine/described_forms.h"
#include "trireme/train/machine/machine.h"
#include "trireme/train/planner/measure_forms.h"
#include "trireme/train/planner/plan_search.h"
#include "trireme/train/planner/planned_keys.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;

constexpr double kAlternatives = 1.02;         ///< on a described machine: limit, relative to the fastest
constexpr std::int64_t kMaxWork = 50'000'000;  ///< of a search: under a minute
constexpr std::size_t kOthersShown = 10;       ///< of the other plans, unless all are requested

std::string counts_in_words(const train::PlanSearch& search) {
  std::string words = text(search.estimated, " plans estimated, ", search.rejected, " that cannot run, ",
                           search.bounded, " that a bound rules out");
  if (!search.is_complete) words += "; the search ended early, at its limit of time or work";
  return words;
}

class PlanText {
 public:
  PlanText(const FoundPlans& found, int world_size, bool shows_all)
      : found_(found), search_(found.search), world_size_(world_size), shows_all_(shows_all) {}

  void print() const {
    std::cout << counts_in_words(search_) << "\n";
    if (search_.plans.empty())
      print_ways(found_, world_size_);
    else
      print_best();
    std::cout << "\ntime against memory: no other plan is both faster and smaller\n";
    print_table(search_.frontier());
    print_compressed();
    print_others();
    std::cout << std::flush;
  }

 private:
  void print_best() const {
    const train::PlannedStep& best = search_.plans.front();
    std::cout << "\nfastest: " << train::in_words(best.config, world_size_) << "\n"
              << "a step: " << in_ms(best.step_s) << " ms, " << std::llround(best.samples_per_s())
              << " samples/s, " << in_bytes(best.memory_bytes) << " on rank " << best.memory_rank;
    if (search_.limit_bytes > 0) std::cout << " of " << in_bytes(search_.limit_bytes);
    std::cout << "\n";
    for (const auto& [key, value] : best.settings) std::cout << "  " << key << " = " << value << "\n";
    if (best.settings.empty()) std::cout << "  the defaults of all planned keys\n";
  }

  void print_table(const std::vector<const train::PlannedStep*>& plans) const {
    TextTable table{.columns = {Align::kRight, Align::kRight, Align::kLeft, Align::kLeft},
                    .rows = {{"step ms", "memory", "plan", "why not"}}};
    for (const train::PlannedStep* plan : plans) {
      const bool is_best = !search_.plans.empty() && plan == &search_.plans.front();
      const train::PlannedStep& best =
          search_.plans.empty() ? search_.too_large.front() : search_.plans.front();
      table.rows.push_back({in_ms(plan->step_s), in_bytes(plan->memory_bytes),
                            train::in_words(plan->config, world_size_),
                            is_best ? "" : train::why_not(*plan, best, search_.limit_bytes)});
    }
    cli::print(std::cout, table);
  }

  void print_compressed() const {
    if (search_.compressed.empty()) return;
    std::cout
        << "\nfaster with compressed gradients, which change the training (memory without residuals):\n";
    TextTable table{.columns = {Align::kRight, Align::kRight, Align::kLeft},
                    .rows = {{"step ms", "memory", "plan"}}};
    for (const train::PlannedStep& plan : search_.compressed)
      table.rows.push_back(
          {in_ms(plan.step_s), in_bytes(plan.memory_bytes), train::in_words(plan.config, world_size_)});
    cli::print(std::cout, table);
  }

  void print_others() const {
    std::vector<const train::PlannedStep*> others;
    for (std::size_t i = 1; i < search_.plans.size(); ++i) others.push_back(&search_.plans[i]);
    for (const train::PlannedStep& plan : search_.too_large) others.push_back(&plan);
    if (others.empty()) return;
    const std::size_t shown = shows_all_ ? others.size() : std::min(kOthersShown, others.size());
    std::cout << "\n"
              << (shown < others.size() ? text("the next ", shown, " of ", others.size()) : "all")
              << " others" << (shown < others.size() ? " (--all: all)" : "") << "\n";
    others.resize(shown);
    print_table(others);
  }

  const FoundPlans& found_;
  const train::PlanSearch& search_;
  const int world_size_;
  const bool shows_all_;
};

ordered_json as_json(const train::PlannedStep& plan, const train::PlanSearch& search, int world_size) {
  ordered_json settings = ordered_json::object();
  for (const auto& [key, value] : plan.settings) settings[key] = value;
  const train::SecondsOfRank& seconds = plan.busiest().seconds;
  ordered_json json = {{"plan", train::in_words(plan.config, world_size)},
                       {"settings", settings},
                       {"step_s", plan.step_s},
                       {"samples_per_s", plan.samples_per_s()},
                       {"memory_bytes", plan.memory_bytes},
                       {"memory_rank", plan.memory_rank},
                       {"forward_s", seconds.forward},
                       {"backward_s", seconds.backward},
                       {"update_s", seconds.update},
                       {"exchange_s", seconds.exchange},
                       {"overhead_s", seconds.overhead},
                       {"idle_s", seconds.idle}};
  if (!search.plans.empty() && &plan != &search.plans.front())
    json["why_not"] = train::why_not(plan, search.plans.front(), search.limit_bytes);
  return json;
}

ordered_json as_json(const train::PlanSearch& search, int world_size) {
  ordered_json plans = ordered_json::array(), too_large = ordered_json::array(),
               frontier = ordered_json::array(), compressed = ordered_json::array();
  for (const train::PlannedStep& plan : search.plans) plans.push_back(as_json(plan, search, world_size));
  for (const train::PlannedStep& plan : search.too_large)
    too_large.push_back(as_json(plan, search, world_size));
  for (const train::PlannedStep* plan : search.frontier())
    frontier.push_back(as_json(*plan, search, world_size));
  for (const train::PlannedStep& plan : search.compressed)
    compressed.push_back(as_json(plan, search, world_size));
  return {{"ranks", world_size},
          {"limit_bytes", search.limit_bytes},
          {"estimated", search.estimated},
          {"rejected", search.rejected},
          {"bounded", search.bounded},
          {"work", search.work},
          {"is_complete", search.is_complete},
          {"plans", plans},
          {"too_large", too_large},
          {"frontier", frontier},
          {"compressed", compressed}};
}

/// Memory limit of a rank.
std::int64_t limit_bytes(const PlanArguments& arguments, const train::RunConfig& config, int world_size,
                         const train::MeasuredForms& measured) {
  if (arguments.memory_gib > 0) return static_cast<std::int64_t>(arguments.memory_gib * 0x1p30);
  const train::RunConfig open = train::before_planning(config, world_size);
  require(train::resolve_plan(open, world_size).device() == c10::kCPU,
          "how much memory the device has left is not known here: give --memory GIB");
  const int of_host = measured.front().ranks_of_host;
  return static_cast<std::int64_t>(available_memory().bytes) / (of_host > 0 ? of_host : world_size);
}

train::PlanSearchOptions options_of_search(const PlanArguments& arguments, const train::RunConfig& config,
                                           int world_size, const train::MeasuredForms& measured) {
  const double end_s = now_s() + arguments.budget_s;
  train::PlanSearchOptions options{.limit_bytes = limit_bytes(arguments, config, world_size, measured)};
  if (!arguments.machine.empty()) options.alternatives = kAlternatives;
  if (arguments.budget_s == 0) options.max_work = kMaxWork;
  if (arguments.budget_s > 0) options.is_over = [end_s] { return now_s() > end_s; };
  return options;
}

FoundPlans searched(const PlanArguments& arguments, const train::RunConfig& config, int world_size,
                    const train::MeasuredForms& measured) {
  const train::PlanSearchOptions options = options_of_search(arguments, config, world_size, measured);
  FoundPlans found{.search = {}, .bare_bytes = train::bytes_without_tensors(measured)};
  if (arguments.frees_batch) {
    found.batches = train::search_batch_sizes(config, world_size, measured, options);
    require(!found.batches->batches.empty(),
            found.batches->is_complete ? "no plan fits into " : "no plan that was tried fits into ",
            in_bytes(options.limit_bytes), " per rank for a batch of ", found.batches->first_too_large,
            "; trireme plan without --free-batch names changes that make one fit");
    return found;
  }
  found.search = train::search_plans(config, world_size, measured, options);
  if (found.search.plans.empty())
    found.ways = train::ways_to_fit(config, world_size, measured, options, found.search);
  return found;
}

/// `checked`: empty if no plan was run.
void print_search(const PlanArguments& arguments, const train::RunConfig& config, int world_size,
                  const FoundPlans& found, const std::vector<CheckedPlan>& checked) {
  if (found.batches) {
    const std::int64_t configured = config.train.global_batch;
    if (arguments.json)
      std::cout << batches_as_json(*found.batches, configured, world_size).dump(2) << std::endl;
    else
      print_batches(*found.batches, configured, world_size);
    return;
  }
  const train::PlanSearch& search = found.search;
  if (!arguments.page.empty())
    write_file_atomic(arguments.page, plan_page(search, config.run.name, world_size));
  if (arguments.toml) {
    require(!search.plans.empty(), "no plan fits into ", in_bytes(search.limit_bytes),
            " per rank; run it without --toml to see what each plan needs");
    const train::PlannedStep& best = checked.empty() ? search.plans.front() : fastest(checked).plan;
    std::cout << "# " << train::in_words(best.config, world_size) << "\n"
              << train::to_toml(best.settings) << std::flush;
  } else if (arguments.json) {
    ordered_json json = as_json(search, world_size);
    if (search.plans.empty()) json["ways_to_fit"] = ways_as_json(found, world_size);
    if (arguments.checks) json["checked"] = as_json(checked, world_size);
    std::cout << json.dump(2) << std::endl;
  } else {
    PlanText(found, world_size, arguments.shows_all).print();
    if (!checked.empty()) print_check(checked, world_size);
  }
}

void search_and_print(const PlanArguments& arguments, const train::RunConfig& config, int world_size,
                      const train::MeasuredForms& measured) {
  print_search(arguments, config, world_size, searched(arguments, config, world_size, measured), {});
}

/// None: --links is not given.
std::optional<train::LinkLevels> given_links(const PlanArguments& arguments, int world_size) {
  if (arguments.links.empty()) return std::nullopt;
  require(world_size > 1, "--links: 1 rank uses no link; give the number of ranks (-n N)");
  return read_links(arguments.links, world_size);
}

/// With the rates of --links, and a line that says so.
train::MeasuredForms over_given_links(const PlanArguments& arguments, int world_size,
                                      train::MeasuredForms measured) {
  const auto links = given_links(arguments, world_size);
  if (!links) return measured;
  std::cerr << "links: of " << arguments.links << ", " << links_in_words(*links, world_size) << "\n";
  return train::over_links(std::move(measured), *links, world_size);
}

void plan_for_machine(const PlanArguments& given, const train::RunConfig& config) {
  const train::Machine machine = train::read_machine(given.machine);
  PlanArguments arguments = given;
  const int world_size = given.ranks.num_ranks == 0 ? machine.num_ranks() : given.ranks.num_ranks;
  if (given.memory_gib == 0) arguments.memory_gib = static_cast<double>(machine.limit_bytes()) / 0x1p30;
  const train::RunConfig there = train::on_described_machine(config);
  search_and_print(arguments, there, world_size,
                   train::described_forms(there, world_size, machine, given.vocabulary));
}

/// The same command on each rank.
RankCommand on_ranks(const Home& home, const PlanArguments& arguments, const train::RunConfig& config) {
  RankCommand command{.name = "plan",
                      .options = {},
                      .of_launch = {"--no-prefix", "--frozen-grace", text(config.comm.timeout_s)},
                      .find_launcher = home.find_launcher};
  const auto add = [&](const char* option, const std::string& value) {
    command.options.insert(command.options.end(), {option, value});
  };
  const auto add_flag = [&](bool is_set, const char* option) {
    if (is_set) command.options.emplace_back(option);
  };
  if (!arguments.save.empty()) add("--save", arguments.save);
  if (!arguments.links.empty()) add("--links", arguments.links);
  if (arguments.memory_gib > 0) add("--memory", text(arguments.memory_gib));
  if (arguments.budget_s > 0) add("--budget", text(arguments.budget_s));
  if (!arguments.page.empty()) add("--page", arguments.page);
  add_flag(arguments.measures, "--measure");
  add_flag(arguments.checks, "--check");
  add_flag(arguments.frees_batch, "--free-batch");
  add_flag(arguments.json, "--json");
  add_flag(arguments.toml, "--toml");
  add_flag(arguments.shows_all, "--all");
  return command;
}

int plan_on_this_rank(const PlanArguments& arguments, const train::RunConfig& config) {
  const auto context = comm::Context::from_environment(config.comm);
  const data::DataSource data = [&] {
    const telemetry::OwnWork work(context->status(), "opening the data");
    return train::open_data(config, context->log());
  }();
  const train::MeasuredForms measured =
      train::known_or_measured(config, *context, data, {}, arguments.measures);
  std::optional<FoundPlans> found;
  comm::on_every_rank(context->world(), [&] {
    if (!context->is_main()) return;
    const telemetry::OwnWork work(context->status(), "searching for a plan");
    if (!arguments.save.empty()) train::write_measurements(arguments.save, measured);
    found = searched(arguments, config, context->world_size(),
                     over_given_links(arguments, context->world_size(), measured));
  });
  std::vector<CheckedPlan> checked;
  if (arguments.checks) checked = check_plans(found ? &found->search : nullptr, config, *context, data);
  if (found) print_search(arguments, config, context->world_size(), *found, checked);
  return kExitOk;
}

}  // namespace

int run_plan(const Home& home, const PlanArguments& arguments) {
  const auto config = train::load_run_config(arguments.ranks.file, arguments.ranks.overrides, home.registry);
  if (!arguments.machine.empty()) {
    plan_for_machine(arguments, config);
    return kExitOk;
  }
  if (!arguments.measurements.empty()) {
    const int world_size = std::max(1, arguments.ranks.num_ranks);
    search_and_print(
        arguments, config, world_size,
        over_given_links(arguments, world_size, train::read_measurements(arguments.measurements)));
    return kExitOk;
  }
  const RankPlan ranks = plan_ranks(arguments.ranks);
  const bool is_first = ranks.launches || ranks.world_size == 1;
  if (is_first) given_links(arguments, ranks.world_size);  // its errors come before ranks are started
  if (is_first && !arguments.measures) {
    if (const auto kept = train::read_kept(config, {ranks.world_size, ranks.world_size})) {
      std::cerr << "costs: as measured on this machine before; --measure measures again\n";
      if (!arguments.checks) {
        if (!arguments.save.empty()) train::write_measurements(arguments.save, *kept);
        search_and_print(arguments, config, ranks.world_size,
                         over_given_links(arguments, ranks.world_size, *kept));
        return kExitOk;
      }
    }
  }
  train::check_forecast(
      train::check_run_config(train::before_planning(config, ranks.world_size), ranks.world_size));
  if (ranks.launches) become_launcher(arguments.ranks, on_ranks(home, arguments, config));
  return plan_on_this_rank(arguments, config);
}

}  // namespace trireme::cli
