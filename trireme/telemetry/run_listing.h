#pragma once
// Many runs: the content of a folder of runs, and differences of some runs. Reads only. A folder that is no
// run, or a run with a damaged file, is an entry with its fault: one bad folder hides none of the others.
// Values and functions without state; thread-safe.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/telemetry/run_data.h"

namespace trireme::telemetry {

struct ListedRun {
  std::filesystem::path folder;
  RunData run;          ///< with the ends of its curves; of a folder with a problem only the name
  std::string problem;  ///< why it is no run that can be read; empty for a run
};

/// The run in that folder, or why there is none.
ListedRun look_at_run(const std::filesystem::path& folder);

/// All folders in `folder`: those that are no runs first, then the runs, the most recent last. Throws
/// DataError when `folder` cannot be read.
std::vector<ListedRun> list_runs(const std::filesystem::path& folder);

/// A number that runs ended with, or have reached so far.
struct Outcome {
  std::string name;                           ///< of the summary: "train_loss"
  std::vector<std::optional<double>> values;  ///< one per run; none where it was not measured
  /// By how much that run's value is above the first run's.
  std::optional<double> difference(std::size_t run) const;
};

/// Differences of runs: in their configurations, and in their results.
struct RunComparison {
  /// Keys of config.toml that are not the same in all runs, with the value of each; "-" where a run has none.
  /// run.name, which always differs, is left out.
  std::vector<std::pair<std::string, std::vector<std::string>>> settings;
  std::vector<Outcome> outcomes;
};

/// Runs keep their order; a run without a value has "-".
RunComparison compare_runs(std::span<const RunData> runs);

}  // namespace trireme::telemetry
