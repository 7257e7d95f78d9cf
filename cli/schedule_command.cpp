#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/schedule_arguments.h"
#include "trireme/base/error.h"
#include "trireme/schedule/carried_out.h"
#include "trireme/schedule/draw.h"

namespace trireme::cli {
namespace {

struct PrintArguments : ScheduleArguments {
  std::string transport = "buffered";
  std::string format = "table";
  std::vector<std::string> views;
  bool comms = false, step = false, merge = false;
};

int list_schedules() {
  for (const schedule::ScheduleRow& row : schedule::schedules()) {
    std::cout << std::left << std::setw(18) << row.name << row.summary << "\n";
  }
  return kExitOk;
}

std::string to_json(const schedule::Program& program) {
  nlohmann::ordered_json json = {{"name", program.name},
                                 {"stages", program.num_stages},
                                 {"microbatches", program.num_microbatches},
                                 {"ranks", nlohmann::ordered_json::array()}};
  for (const auto& actions : program.ranks) {
    auto& row = json["ranks"].emplace_back(nlohmann::ordered_json::array());
    for (const schedule::Cell cell : schedule::cells_of(actions)) row.push_back(schedule::to_text(cell));
  }
  return json.dump(1) + "\n";
}

std::string drawn(const schedule::Program& program, const PrintArguments& given) {
  std::vector<schedule::View> views;
  for (const std::string& name : given.views) views.push_back(schedule::parse_view(name));
  if (views.empty()) views = {schedule::View::kDevice, schedule::View::kTime};
  return schedule::to_svg(program, schedule::simulate(program, costs_of(given)), views);
}

std::string formatted(const schedule::Program& program, const PrintArguments& given) {
  const std::vector<std::string> known = {"table", "csv", "json", "svg"};
  require(given.views.empty() || given.format == "svg", "--view is for --format svg, found ", given.format);
  if (given.format == "table") return schedule::to_table(program);
  if (given.format == "csv") return schedule::to_csv(program);
  if (given.format == "json") return to_json(program);
  if (given.format == "svg") return drawn(program, given);
  throw InvalidArgument(text("unknown format '", given.format, "'", suggest(given.format, known)));
}

int check_program(const PrintArguments& given, schedule::Transport transport) {
  const schedule::Program program = program_of(given);
  const schedule::Form form = schedule::form_of(program);
  schedule::validate(program, {.form = form, .transport = transport});
  const auto count = [&](const char* what) {
    return text(program.ranks.size(), " ranks, ", program.num_stages, " stages, ", program.num_microbatches,
                " micro-batches, ", what);
  };
  const char* content = "a whole step";
  if (form == schedule::Form::kTransfers) content = "with transfers";
  if (form == schedule::Form::kOrder)
    content = program.update_every > 0 ? "computations and updates" : "computations alone";
  std::cout << given.file << ": sound: " << count(content);
  if (form != schedule::Form::kOrder) std::cout << ", transport " << schedule::to_text(transport);
  std::cout << "\n";
  const std::string left_out =
      schedule::not_carried_out(program, schedule::Activations::kKept, schedule::Weights::kWhole);
  if (!left_out.empty()) std::cout << "note: a run rejects it: " << left_out << "\n";
  return kExitOk;
}

int print_schedule(const PrintArguments& given) {
  const schedule::Transport transport = schedule::parse_transport(given.transport);
  if (given.name.empty() && given.file.empty()) return list_schedules();
  if (!given.file.empty()) return check_program(given, transport);
  schedule::Program program = program_of(given);
  if (given.merge) program = schedule::merge_backward(std::move(program));
  if (given.comms || given.step) {
    program = schedule::lower(program, {.transport = transport, .with_update = given.step});
  }
  std::cout << formatted(program, given);
  return kExitOk;
}

std::function<int()> declare_schedule(CLI::App& app) {
  auto given = std::make_shared<PrintArguments>();
  app.add_option("name", given->name, "A schedule; without one, the names of all")->type_name("NAME");
  declare_size(app, *given);
  app.add_flag("--comms", given->comms, "With sends and receives");
  app.add_flag("--step", given->step, "With these, REDUCE_GRAD and STEP: what ranks execute");
  app.add_flag("--merge", given->merge, "An I and the W directly after it become one B");
  app.add_option("--transport", given->transport, "buffered or rendezvous (default: buffered)")
      ->type_name("MODEL");
  app.add_option("--format", given->format, "table, csv, json or svg (default: table)")->type_name("FORMAT");
  app.add_option("--view", given->views, "svg: device, time, microbatches (default: device,time)")
      ->type_name("VIEW,...")
      ->delimiter(',');
  app.add_option("--check", given->file, "Prove that a program of your own can run")->type_name("FILE.csv");
  declare_file_facts(app, *given);
  declare_costs(app, *given);
  return [given] { return print_schedule(*given); };
}

}  // namespace

Command schedule_command() {
  return {.name = "schedule",
          .summary = "Print, draw or check the actions of each rank in a pipeline step",
          .usage = "[NAME] [OPTIONS]",
          .examples =
              "  trireme schedule\n"
              "  trireme schedule 1f1b --ranks 4 --microbatches 8\n"
              "  trireme schedule zb-v --ranks 4 --microbatches 8 --format svg > zb-v.svg\n"
              "  trireme schedule gpipe --ranks 4 --microbatches 4 --format svg --view time,microbatches\n"
              "  trireme schedule 1f1b --ranks 2 --microbatches 4 --comms --transport rendezvous\n"
              "  trireme schedule --check my_schedule.csv\n",
          .declare = declare_schedule};
}

}  // namespace trireme::cli
