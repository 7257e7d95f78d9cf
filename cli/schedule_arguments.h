#pragma once
// What `trireme schedule` and `trireme simulate` share: the options that name a schedule, its size, the costs
// it is searched or simulated with, and the program that they make.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "trireme/schedule/lowering.h"
#include "trireme/schedule/schedule_table.h"
#include "trireme/schedule/validate.h"

namespace trireme::cli {

struct ScheduleArguments {
  std::string name;
  std::string file;  ///< a program of the user's own instead of a name
  schedule::ScheduleOptions options{.num_ranks = 0, .num_microbatches = 0};  ///< 0: not given
  std::vector<int> replicas;
  double forward = 1, backward_input = 1, backward_weight = 1, unshard = 0, reduce = 0, update = 0;
  double kept_for_weight = -1;  ///< below 0: not given
  bool replicated = false;      ///< stages of a file may be on several ranks
};

/// Declares --ranks, --chunks, --microbatches and what only some schedules use.
void declare_size(CLI::App& app, ScheduleArguments& given);

/// Declares what actions and messages take, and what a rank may hold.
void declare_costs(CLI::App& app, ScheduleArguments& given);

/// Declares --replicated and --update-every, which say about a file what its rows cannot.
void declare_file_facts(CLI::App& app, ScheduleArguments& given);

/// The named schedule's program, or the file's. Throws InvalidArgument when neither or both are given.
schedule::Program program_of(const ScheduleArguments& given);

schedule::Costs costs_of(const ScheduleArguments& given);

}  // namespace trireme::cli
