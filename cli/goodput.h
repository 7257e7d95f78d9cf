#pragma once
// `trireme simulate --goodput`: the share of its wall time that a job trains, from its failures and what
// saves and restarts cost (trireme/plan/goodput.h).

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "cli/report_format.h"

namespace trireme::cli {

struct GoodputArguments {
  bool asked = false;        ///< --goodput
  std::int64_t hosts = 0;    ///< 0: not given
  double mtbf_hours = 0;     ///< of one host; 0: not given
  double interruptions = 0;  ///< of the whole job, per day; 0: not given
  double save_s = 0;         ///< 0: not given
  double notice_s = 60;      ///< comm.timeout_s, as it is shipped
  double restart_s = -1;     ///< below 0: not given
  std::string interval_s = "auto";
  bool elastic = false;
  double copy_interval_s = 60, copy_s = 0, regroup_s = 30;
};

/// Declares --goodput and what goes with it. The options that `app` has already do not go with it.
void declare_goodput(CLI::App& app, GoodputArguments& given);

/// Prints the report. Throws InvalidArgument: a number is missing, or is none that plan::goodput() takes.
void print_goodput(const GoodputArguments& given, ReportFormat format);

}  // namespace trireme::cli
