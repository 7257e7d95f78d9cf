#include "trireme/telemetry/run_listing.h"

#include <algorithm>
#include <set>
#include <system_error>
#include <tuple>

#include "trireme/base/error.h"

namespace trireme::telemetry {
namespace {

namespace fs = std::filesystem;

/// Adds a name unless it is there: the order is that of first appearance.
void add_new(std::vector<std::string>& names, const std::string& name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
}

/// Names of the final numbers of runs. For unfinished runs, those that a summary would contain.
std::vector<std::string> outcome_names(std::span<const RunData> runs) {
  std::vector<std::string> names = {"steps"};
  for (const RunData& run : runs) {
    for (const auto& [name, value] : run.summary.fields) {
      if (!std::holds_alternative<std::string>(value)) add_new(names, name);
    }
  }
  for (const RunData& run : runs) {
    for (const std::string& name : run.measures) add_new(names, name);
    if (run.result("samples_per_s")) add_new(names, "samples_per_s");
  }
  return names;
}

std::optional<double> value_of(const RunData& run, const std::string& name) {
  return name == "steps" ? static_cast<double>(run.steps) : run.result(name);
}

}  // namespace

ListedRun look_at_run(const fs::path& folder) {
  ListedRun listed{.folder = folder, .run = {}, .problem = {}};
  try {
    listed.run = read_run(folder, Metrics::kEnd);
  } catch (const DataError& error) {
    const fs::path whole = folder.lexically_normal();
    listed.run.name = (whole.has_filename() ? whole : whole.parent_path()).filename().string();
    listed.problem = error.what();
  }
  return listed;
}

std::vector<ListedRun> list_runs(const fs::path& folder) {
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  if (error) {
    throw DataError(text("cannot list the runs in ", folder.string(), ": ", error.message(),
                         "; name the folder that holds them (run.folder): trireme runs DIR"));
  }
  std::vector<ListedRun> runs;
  for (const fs::directory_entry& entry : entries) {
    if (entry.is_directory(error)) runs.push_back(look_at_run(entry.path()));
  }
  const auto place = [](const ListedRun& listed) {
    return std::make_tuple(listed.problem.empty(), listed.run.changed_unix_ns, listed.run.name);
  };
  std::sort(runs.begin(), runs.end(),
            [&](const ListedRun& a, const ListedRun& b) { return place(a) < place(b); });
  return runs;
}

std::optional<double> Outcome::difference(std::size_t run) const {
  if (!values.front() || !values[run]) return std::nullopt;
  return *values[run] - *values.front();
}

RunComparison compare_runs(std::span<const RunData> runs) {
  RunComparison comparison;
  std::vector<std::string> keys;
  for (const RunData& run : runs) {
    for (const auto& [key, value] : run.config) add_new(keys, key);
  }
  for (const std::string& key : keys) {
    std::vector<std::string> values;
    for (const RunData& run : runs) {
      const std::string value = run.setting(key);
      values.push_back(value.empty() ? "-" : value);
    }
    const bool differs = std::set<std::string>(values.begin(), values.end()).size() > 1;
    if (differs && key != "run.name") comparison.settings.emplace_back(key, std::move(values));
  }
  for (const std::string& name : outcome_names(runs)) {
    Outcome outcome{.name = name, .values = {}};
    for (const RunData& run : runs) outcome.values.push_back(value_of(run, name));
    comparison.outcomes.push_back(std::move(outcome));
  }
  return comparison;
}

}  // namespace trireme::telemetry
