#include "cli/runs_report.h"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string_view>
#include <utility>

#include "cli/text_table.h"
#include "trireme/base/printable.h"
#include "trireme/base/text.h"
#include "trireme/telemetry/page_text.h"

namespace trireme::cli {
namespace {

using Json = nlohmann::ordered_json;
using telemetry::ListedRun;
using telemetry::Outcome;
using telemetry::RunData;

constexpr const char* kNothing = "-";
constexpr std::size_t kShortDigest = 8;
constexpr std::int64_t kSecond = 1000000000;  // in ns

/// The measure on held-out data: "accuracy" -> test_accuracy or validation_accuracy.
std::optional<double> held_out(const RunData& run, const std::string& measure) {
  const auto test = run.result("test_" + measure);
  return test ? test : run.result("validation_" + measure);
}

std::string in_words(const std::string& name, double value) {
  if (name == "wall_s") return human_duration(value);
  if (name == "peak_rss_bytes") return human_bytes(static_cast<std::uint64_t>(std::max(value, 0.0)));
  if (name == "steps" || name == "world_size") return telemetry::short_number(value, 9);
  return telemetry::short_number(value);
}

std::string in_words(const std::string& name, const std::optional<double>& value) {
  return value ? in_words(name, *value) : kNothing;
}

/// " (+0.012)"; for costs the relative change, " (+12 %)", or " (x3.1)".
std::string difference_in_words(const Outcome& outcome, std::size_t run) {
  const auto difference = outcome.difference(run);
  if (!difference) return {};
  if (*difference == 0) return " (same)";
  const char* sign = *difference > 0 ? "+" : "-";
  const double size = std::abs(*difference), first = std::abs(*outcome.values.front());
  const bool is_cost =
      outcome.name == "samples_per_s" || outcome.name == "wall_s" || outcome.name == "peak_rss_bytes";
  if (!is_cost || first == 0) return text(" (", sign, in_words(outcome.name, size), ")");
  if (size >= first) return text(" (x", telemetry::short_number(*outcome.values[run] / first, 3), ")");
  return text(" (", sign, telemetry::short_number(100 * size / first, 3), " %)");
}

std::string model_of(const RunData& run) {
  const std::string model = run.setting("model.name"), data = run.setting("data.name");
  return model.empty() && data.empty() ? kNothing : text(model, "/", data);
}

std::string digest_of(const RunData& run) {
  const std::string digest = run.result_text("weights_xxh3");
  return digest.empty() ? kNothing : digest.substr(0, kShortDigest);
}

std::string time_of(const RunData& run) {
  return run.changed_unix_ns > 0 ? telemetry::calendar_time(run.changed_unix_ns / kSecond) : kNothing;
}

std::vector<std::string> row_of(const RunData& run) {
  return {run.name,
          time_of(run),
          run.status,
          model_of(run),
          in_words("world_size", run.result("world_size")),
          text(run.steps),
          in_words("train_loss", run.result("train_loss")),
          in_words("test_loss", held_out(run, "loss")),
          in_words("test_accuracy", held_out(run, "accuracy")),
          in_words("samples_per_s", run.result("samples_per_s")),
          in_words("wall_s", run.result("wall_s")),
          digest_of(run)};
}

/// A count has no fraction.
Json as_number(double value, bool is_count) {
  return is_count ? Json(static_cast<std::int64_t>(value)) : Json(value);
}

/// The folder, then the problem, or the facts of the run under the names of summary.json.
Json json_of(const ListedRun& listed) {
  Json row = {{"folder", listed.folder.string()}, {"name", listed.run.name}};
  if (!listed.problem.empty()) {
    row["problem"] = listed.problem;
    return row;
  }
  const RunData& run = listed.run;
  row["status"] = run.status;
  if (run.exit_code) row["exit_code"] = *run.exit_code;
  if (!run.message.empty()) row["message"] = run.message;
  row["changed_unix_s"] = run.changed_unix_ns / kSecond;
  row["model"] = run.setting("model.name");
  row["data"] = run.setting("data.name");
  row["steps"] = run.steps;
  std::vector<std::string> names = {"world_size",    "train_loss",      "test_loss",
                                    "test_accuracy", "validation_loss", "validation_accuracy"};
  names.insert(names.end(), run.measures.begin(), run.measures.end());
  names.insert(names.end(), {"samples_per_s", "wall_s", "peak_rss_bytes"});
  for (const std::string& name : names) {
    if (const auto value = run.result(name)) row[name] = as_number(*value, run.is_count(name));
  }
  if (!run.result_text("weights_xxh3").empty()) row["weights_xxh3"] = run.result_text("weights_xxh3");
  return row;
}

void write(std::ostream& out, const Json& json) {
  out << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
}

void write_problems(std::ostream& out, std::span<const ListedRun> runs) {
  for (const ListedRun& listed : runs) {
    if (!listed.problem.empty()) out << printable_message(listed.problem) << "\n";
  }
}

/// Messages of runs that ended with an error, below their table.
void write_messages(std::ostream& out, std::span<const RunData> runs) {
  const char* before = "\n";
  for (const RunData& run : runs) {
    if (run.message.empty()) continue;
    const std::string code = run.exit_code ? text(" (exit code ", *run.exit_code, ")") : std::string();
    out << std::exchange(before, "") << printable(run.name, kWhole) << ": " << printable(run.status) << code
        << ": " << printable_message(run.message) << "\n";
  }
}

std::vector<RunData> readable(std::span<const ListedRun> runs) {
  std::vector<RunData> result;
  for (const ListedRun& listed : runs) {
    if (listed.problem.empty()) result.push_back(listed.run);
  }
  return result;
}

Json json_of_comparison(std::span<const ListedRun> runs, const telemetry::RunComparison& comparison) {
  Json json = {{"runs", Json::array()}, {"settings", Json::object()}, {"outcomes", Json::object()}};
  for (const ListedRun& listed : runs) json["runs"].push_back(json_of(listed));
  for (const auto& [key, values] : comparison.settings) json["settings"][key] = values;
  for (const Outcome& outcome : comparison.outcomes) {
    const bool is_count = outcome.name == "steps" || std::ranges::any_of(runs, [&](const ListedRun& listed) {
                            return listed.run.is_count(outcome.name);
                          });
    const auto or_null = [&](const std::optional<double>& value) {
      return value ? as_number(*value, is_count) : Json();
    };
    Json values = Json::array(), differences = Json::array();
    for (std::size_t i = 0; i < outcome.values.size(); ++i) {
      values.push_back(or_null(outcome.values[i]));
      differences.push_back(or_null(outcome.difference(i)));
    }
    json["outcomes"][outcome.name] = {{"values", values}, {"differences", differences}};
  }
  return json;
}

/// A heading, and one cell per run.
template <class Cell>
std::vector<std::string> line_of(std::string heading, std::span<const RunData> runs, Cell&& cell) {
  std::vector<std::string> row = {std::move(heading)};
  for (const RunData& run : runs) row.push_back(cell(run));
  return row;
}

TextTable table_of(std::span<const RunData> runs, const telemetry::RunComparison& comparison) {
  TextTable table{.columns = std::vector<Align>(runs.size() + 1, Align::kLeft), .rows = {}};
  auto& rows = table.rows;
  rows.push_back(line_of("", runs, [](const RunData& run) { return run.name; }));
  rows.push_back(line_of("when", runs, time_of));
  rows.push_back(line_of("status", runs, [](const RunData& run) { return run.status; }));
  rows.push_back({});
  rows.push_back({comparison.settings.empty() ? "settings: the same" : "settings that differ"});
  for (const auto& [key, values] : comparison.settings) {
    rows.push_back({"  " + key});
    rows.back().insert(rows.back().end(), values.begin(), values.end());
  }
  rows.push_back({});
  rows.push_back({"results"});
  for (const Outcome& outcome : comparison.outcomes) {
    rows.push_back({"  " + outcome.name});
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const std::string difference = i == 0 ? std::string() : difference_in_words(outcome, i);
      rows.back().push_back(in_words(outcome.name, outcome.values[i]) + difference);
    }
  }
  rows.push_back(line_of("  weights_xxh3", runs, digest_of));
  return table;
}

}  // namespace

void print_runs(std::ostream& out, std::span<const ListedRun> runs, ReportFormat format) {
  if (format == ReportFormat::kJson) {
    Json rows = Json::array();
    for (const ListedRun& listed : runs) rows.push_back(json_of(listed));
    return write(out, rows);
  }
  TextTable table{
      .columns = {Align::kLeft, Align::kLeft, Align::kLeft, Align::kLeft, Align::kRight, Align::kRight,
                  Align::kRight, Align::kRight, Align::kRight, Align::kRight, Align::kRight, Align::kLeft},
      .rows = {{"name", "when", "status", "model/data", "ranks", "steps", "train loss", "test loss",
                "accuracy", "samples/s", "wall", "weights"}}};
  for (const RunData& run : readable(runs)) table.rows.push_back(row_of(run));
  write_problems(out, runs);
  if (table.rows.size() > 1) print(out, table);
  write_messages(out, readable(runs));
  if (runs.empty()) out << "no runs\n";
}

void print_comparison(std::ostream& out, std::span<const ListedRun> runs, ReportFormat format) {
  const std::vector<RunData> found = readable(runs);
  const telemetry::RunComparison comparison = telemetry::compare_runs(found);
  if (format == ReportFormat::kJson) return write(out, json_of_comparison(runs, comparison));
  write_problems(out, runs);
  if (!found.empty()) print(out, table_of(found, comparison));
}

}  // namespace trireme::cli
