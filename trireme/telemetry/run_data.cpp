#include "trireme/telemetry/run_data.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>

#include "trireme/base/bounded_file.h"
#include "trireme/base/bounded_json.h"
#include "trireme/base/error.h"
#include "trireme/base/open_file.h"
#include "trireme/base/printable.h"
#include "trireme/base/toml.h"
#include "trireme/base/toml_nesting.h"
#include "trireme/base/toml_text.h"
#include "trireme/telemetry/run_end.h"
#include "trireme/telemetry/run_summary.h"

namespace trireme::telemetry {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kEvaluation = "eval";

struct Setting {
  std::string key;
  std::string value;
  std::uint32_t line = 0;
};

void collect(const std::string& prefix, const toml::table& table, std::vector<Setting>& settings) {
  for (const auto& [key, node] : table) {
    const std::string name = prefix.empty() ? std::string(key.str()) : text(prefix, ".", key.str());
    if (const toml::table* inner = node.as_table()) {
      collect(name, *inner, settings);
      continue;
    }
    const auto* words = node.as_string();
    settings.push_back({name, words ? words->get() : toml_text(node), node.source().begin.line});
  }
}

void read_config(const std::filesystem::path& path, RunData& run) {
  std::vector<Setting> settings;
  const std::string content = read_bounded_file(path, kMaxConfigBytes, "configuration");
  if (const auto line = line_of_deep_key(content))
    throw DataError(text(path.string(), ":", *line, ": a key of more than ", kMaxKeyParts, " parts"));
  try {
    collect("", toml::parse(content, path.string()), settings);
  } catch (const toml::parse_error& error) {
    throw DataError(text(path.string(), ":", error.source().begin.line, ": ", error.description()));
  }
  // The table is sorted by name. Users expect the order of the file.
  std::stable_sort(settings.begin(), settings.end(),
                   [](const Setting& a, const Setting& b) { return a.line < b.line; });
  for (Setting& setting : settings) {
    run.config.emplace_back(std::move(setting.key), std::move(setting.value));
  }
}

/// Lines that Trireme writes have some hundred values.
constexpr JsonLimits kMetricsLimits{.levels = 8, .values = 20'000};
constexpr std::size_t kMaxMeasures = 1000;
constexpr std::size_t kMaxMetricsLineBytes = std::size_t{16} << 20;
constexpr std::uint64_t kMaxSummaryBytes = std::uint64_t{16} << 20;
/// Long runs need a high limit. A device has no size at all.
constexpr std::uint64_t kAnySize = std::uint64_t{1} << 62;

/// Null if the line is not JSON or exceeds the limits.
Json metrics_line(std::string_view words) {
  try {
    return parse_json<Json>(words, kMetricsLimits);
  } catch (const DataError&) {
    return nullptr;
  }
}

bool is_event(const Json& line, std::string_view name) {
  if (!line.is_object()) return false;
  const auto event = line.find("event");
  return event != line.end() && *event == name;
}
bool is_evaluation(const Json& line) { return is_event(line, kEvaluation); }

void add_decision(const Json& line, double step, RunData& run) {
  constexpr std::size_t kMaxDecisions = 1000;
  if (run.decisions.size() == kMaxDecisions) return;
  const auto words = [&](const char* name) {
    const auto found = line.find(name);
    return found != line.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  run.decisions.emplace_back(text("step ", static_cast<std::int64_t>(step), ": ", words("knob"), " ",
                                  words("from"), " -> ", words("to")),
                             text(words("verdict"), ": ", words("reason")));
}

/// A step above 2^53 is invalid, and may not fit into std::int64_t.
bool is_step(double number) { return number >= 0 && number <= 9007199254740992.0; }

void add_line(const Json& line, RunData& run) {
  const auto step = line.find("step");
  if (step == line.end() || !step->is_number()) return;
  const double number = step->get<double>();
  if (!is_step(number)) return;
  run.steps = std::max(run.steps, static_cast<std::int64_t>(number));
  if (is_event(line, "adapt")) return add_decision(line, number, run);
  const bool evaluates = is_evaluation(line);
  for (const auto& [name, value] : line.items()) {
    // A loss that was not finite was written as null.
    if (name != "step" && value.is_number()) {
      run.curves[name].push_back({step->get<double>(), value.get<double>()});
      const bool measured = evaluates && name != "samples" && name != "time_s";
      if (measured && run.measures.size() < kMaxMeasures &&
          std::find(run.measures.begin(), run.measures.end(), name) == run.measures.end())
        run.measures.push_back(name);
    }
  }
}

void read_metrics(const std::filesystem::path& path, RunData& run) {
  const std::string content = read_bounded_file(path, kAnySize, "list of metrics");
  std::string_view left = content;
  for (std::size_t number = 1; !left.empty(); ++number) {
    const std::size_t end = left.find('\n');
    const std::string_view words = left.substr(0, end);
    left.remove_prefix(end == std::string_view::npos ? left.size() : end + 1);
    if (words.empty()) continue;
    const Json line = metrics_line(words);
    if (line.is_object()) {
      add_line(line, run);
    } else if (end != std::string_view::npos) {  // else a write in progress, or cut off by a kill
      throw DataError(text(path.string(), ":", number, ": expected a JSON object on the line, found '",
                           printable(words, 40), "'"));
    }
  }
}

/// Complete lines of a file, read in blocks from its end.
class LinesFromTheEnd {
 public:
  explicit LinesFromTheEnd(const std::filesystem::path& path)
      : path_(path), left_(size_of(path)), file_(path, std::ios::binary) {}

  bool at_the_beginning() const { return left_ == 0; }

  /// The lines that end in the next block towards the file's beginning, in the file's order.
  std::vector<std::string> block() {
    constexpr std::uintmax_t kBlock = std::uintmax_t{1} << 20;
    const std::uintmax_t size = std::min(kBlock, left_);
    left_ -= size;
    std::string bytes(size, '\0');
    file_.seekg(static_cast<std::streamoff>(left_));
    if (!file_.read(bytes.data(), static_cast<std::streamsize>(size)))
      throw DataError(text("cannot read ", path_.string()));
    std::vector<std::string> lines = split(bytes + beginning_of_next_, '\n');
    beginning_of_next_.clear();
    if (left_ > 0) {  // the first line begins in the preceding block
      beginning_of_next_ = std::move(lines.front());
      if (beginning_of_next_.size() > kMaxMetricsLineBytes) {
        throw DataError(text(path_.string(), " has a line of more than ", kMaxMetricsLineBytes,
                             " bytes; it holds no metrics"));
      }
      lines.erase(lines.begin());
    }
    return lines;
  }

 private:
  /// Size of a file that can be opened without blocking.
  static std::uintmax_t size_of(const std::filesystem::path& path) {
    if (!open_to_read(path).is_open())
      throw DataError(text("cannot read ", path.string(), ": ", problem_of_open(errno)));
    std::error_code error;
    const std::uintmax_t size = std::filesystem::file_size(path, error);
    if (error) throw DataError(text("cannot read ", path.string(), ": it is no regular file"));
    return size;
  }

  const std::filesystem::path& path_;
  std::uintmax_t left_;
  std::ifstream file_;
  std::string beginning_of_next_;
};

void read_end_of_metrics(const std::filesystem::path& path, RunData& run) {
  LinesFromTheEnd lines(path);
  for (const std::string& words : lines.block()) {
    const Json line = metrics_line(words);
    if (line.is_object()) add_line(line, run);
  }
  RunData before;
  while (run.measures.empty() && before.measures.empty() && !lines.at_the_beginning()) {
    for (const std::string& words : lines.block()) {
      if (words.find(kEvaluation) == std::string::npos) continue;  // most lines are steps: not parsed
      const Json line = metrics_line(words);
      if (is_evaluation(line)) add_line(line, before);
    }
  }
  run.curves.merge(before.curves);
  if (run.measures.empty()) run.measures = before.measures;
}

void take_summary(Record summary, const std::filesystem::path& path, RunData& run) {
  const double number = summary.number("steps", static_cast<double>(run.steps));
  if (!is_step(number))
    throw DataError(text(path.string(), ": expected a number of steps, found 'steps' as ", number));
  const auto steps = static_cast<std::int64_t>(number);
  if (steps < run.steps) return;  // a summary from before a resume
  run.steps = steps;
  run.summary = std::move(summary);
  run.status = run.result_text("status");
}

/// Sets whether the run is alive, or else how it ended.
void take_end(const std::filesystem::path& folder, RunData& run) {
  const LockHolder holder = holder_of(folder / "run.lock");
  if (holder.state == LockHolder::State::kAlive) {
    run.status = "running";
  } else if (std::optional<RunEnd> end = read_run_end(folder / "end.json")) {
    run.status = std::move(end->status);
    run.exit_code = end->exit_code;
    run.message = std::move(end->message);
    run.steps = end->steps;
  } else if (holder.state == LockHolder::State::kGone && run.summary.fields.empty()) {
    run.status = "killed";
    run.message = text(holder.who, " is gone without a word: it was killed, or the machine went down");
  }
}

/// 0 when there is no such file.
std::int64_t changed_unix_ns(const std::filesystem::path& path) {
  struct stat about {};
  return ::stat(path.c_str(), &about) == 0 ? about.st_mtim.tv_sec * 1000000000LL + about.st_mtim.tv_nsec : 0;
}

bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

std::string name_of(const std::filesystem::path& folder) {
  std::error_code ignored;
  const std::filesystem::path whole = std::filesystem::absolute(folder, ignored).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

}  // namespace

std::string RunData::setting(std::string_view key) const {
  const auto found =
      std::find_if(config.begin(), config.end(), [&](const auto& c) { return c.first == key; });
  return found == config.end() ? std::string() : found->second;
}

const Curve& RunData::curve(const std::string& wanted) const {
  static const Curve kNone;
  const auto found = curves.find(wanted);
  return found == curves.end() ? kNone : found->second;
}

std::optional<double> RunData::result(const std::string& wanted) const {
  for (const auto& [key, value] : summary.fields) {
    if (key == wanted && !std::holds_alternative<std::string>(value)) return summary.number(key, 0);
  }
  if (curve(wanted).empty()) return std::nullopt;
  return curve(wanted).back().value;
}

bool RunData::is_count(std::string_view wanted) const {
  return std::ranges::any_of(summary.fields, [&](const auto& field) {
    return field.first == wanted && std::holds_alternative<std::int64_t>(field.second);
  });
}

std::string RunData::result_text(std::string_view wanted) const { return summary.words(wanted); }

bool holds_run(const std::filesystem::path& folder) {
  return is_there(folder / "config.toml") || is_there(folder / "metrics.jsonl") ||
         is_there(folder / "summary.json");
}

RunData read_run(const std::filesystem::path& folder, Metrics metrics) {
  if (!is_there(folder)) throw DataError(text("there is no folder ", folder.string()));
  if (!holds_run(folder)) {
    throw DataError(text(folder.string(),
                         " is no run's folder: none of config.toml, metrics.jsonl, summary.json is in it"));
  }
  RunData run;
  run.name = name_of(folder);
  for (const char* file : {"config.toml", "metrics.jsonl", "summary.json", "end.json"}) {
    run.changed_unix_ns = std::max(run.changed_unix_ns, changed_unix_ns(folder / file));
  }
  if (is_there(folder / "config.toml")) read_config(folder / "config.toml", run);
  if (is_there(folder / "metrics.jsonl"))
    (metrics == Metrics::kAll ? read_metrics : read_end_of_metrics)(folder / "metrics.jsonl", run);
  if (is_there(folder / "summary.json"))
    take_summary(
        parse_summary(read_bounded_file(folder / "summary.json", kMaxSummaryBytes, "summary of a run"),
                      folder / "summary.json"),
        folder / "summary.json", run);
  take_end(folder, run);
  return run;
}

}  // namespace trireme::telemetry
