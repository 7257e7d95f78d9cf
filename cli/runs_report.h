#pragma once
// What `trireme runs` prints: runs as a table, and runs side by side.

#include <iosfwd>
#include <span>

#include "cli/report_format.h"
#include "trireme/telemetry/run_listing.h"

namespace trireme::cli {

/// One line per run, above them a line for each folder that is no run.
void print_runs(std::ostream& out, std::span<const telemetry::ListedRun> runs, ReportFormat format);

/// One column per run: the settings that differ, then the results, from the second run on with the difference
/// to the first; above them a line for each folder that is no run.
void print_comparison(std::ostream& out, std::span<const telemetry::ListedRun> runs, ReportFormat format);

}  // namespace trireme::cli
