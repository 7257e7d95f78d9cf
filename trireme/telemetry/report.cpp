#include "trireme/telemetry/report.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <iomanip>

#include "trireme/base/files.h"
#include "trireme/base/text.h"
#include "trireme/telemetry/line_chart.h"
#include "trireme/telemetry/page_text.h"
#include "trireme/telemetry/report_style.h"
#include "trireme/telemetry/run_end.h"

namespace trireme::telemetry {
namespace {

constexpr std::size_t kManyPoints = 80;  // from here on a mean is drawn over the measurements

std::string spaced(std::string name) {
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

/// Measures of evaluations, such as "test_accuracy" and "test_loss". The loss is last.
std::vector<std::string> measures_of(const RunData& run) {
  if (!run.measures.empty()) return run.measures;
  const std::string held_out = run.result("validation_loss") ? "validation" : "test";
  return {held_out + "_accuracy", held_out + "_loss"};
}

/// Prefix of the run's held-out measures: "test" or "validation".
std::string held_out_of(const RunData& run) {
  const std::string loss = measures_of(run).back();
  return loss.substr(0, loss.size() - std::string_view("_loss").size());
}

bool is_duration(const std::string& name) { return name.ends_with("_s") && !name.ends_with("_per_s"); }

bool is_bytes(const std::string& name) {
  return name.ends_with("_bytes") || name.find("_bytes_of_") != std::string::npos;
}

std::string in_words(const std::string& name, double value) {
  if (is_duration(name)) return human_duration(value);
  if (is_bytes(name)) return human_bytes(static_cast<std::uint64_t>(std::clamp(value, 0.0, 1e18)));
  if (name == "steps" || name == "world_size") return text(std::fixed, std::setprecision(0), value);
  return short_number(value);
}

/// Title of a summary field.
std::string title_of(const std::string& name) {
  if (name == "samples_per_s") return "samples/s, all ranks";
  if (name == "wall_s") return "wall time";
  if (name == "peak_rss_bytes") return "peak memory, largest rank";
  if (name == "world_size") return "world size, ranks";
  if (name == "weights_xxh3") return "digest of the weights (xxh3)";
  return spaced(is_duration(name) ? name.substr(0, name.size() - 2) : name);
}

std::string table_of(const Facts& rows) {
  std::string out;
  for (const auto& [name, value] : rows) {
    out += text("<tr><td>", escape_html(name), "</td><td>", escape_html(value), "</td></tr>\n");
  }
  return text("<table>\n", out, "</table>");
}

std::string card(const std::string& title, const Facts& rows) {
  if (rows.empty()) return {};
  return text("<div class=\"card\"><h3>", escape_html(title), "</h3>", table_of(rows), "</div>\n");
}

std::string tiles(const RunData& run) {
  std::vector<std::string> names = measures_of(run);
  names.insert(names.end(), {"train_loss", "samples_per_s", "wall_s", "peak_rss_bytes"});
  std::string out;
  for (const std::string& name : names) {
    if (const auto value = run.result(name)) {
      out += text("<div class=\"tile\"><b>", in_words(name, *value), "</b>", title_of(name), "</div>\n");
    }
  }
  return out.empty() ? out : text("<div class=\"tiles\">\n", out, "</div>\n");
}

/// The measurements, with a moving mean over them if they are many.
std::vector<Series> with_mean(const std::string& name, const Curve& curve) {
  if (curve.size() < kManyPoints) return {{name, curve, 0, LineStyle::kLine}};
  const std::size_t window = std::max<std::size_t>(5, curve.size() / 40) | 1;
  return {{name, curve, 0, LineStyle::kFaint},
          {text("mean of ", window, " lines"), smoothed(curve, window), 0, LineStyle::kLine}};
}

Chart loss_chart(const RunData& run) {
  Chart chart{.title = "Loss",
              .unit = "",
              .series = with_mean("train", run.curve("loss")),
              .scale = ChartScale::kAuto};
  const std::string held_out = held_out_of(run);
  chart.series.push_back({held_out, run.curve(held_out + "_loss"), 1, LineStyle::kDots});
  return chart;
}

/// `measure`: for example "test_accuracy".
Chart metric_chart(const RunData& run, const std::string& measure) {
  const std::string name = spaced(measure);
  std::string title = name;
  title.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(title.front())));
  return {.title = title,
          .unit = "",
          .series = {{name, run.curve(measure), 1, LineStyle::kDots}},
          .scale = ChartScale::kFitted};
}

/// Shares of rank 0's time.
Chart time_chart(const RunData& run) {
  constexpr std::size_t kMaxSpans = 200;
  const Curve data = averaged(run.curve("data_wait"), kMaxSpans);
  const Curve comm = averaged(run.curve("comm_wait"), kMaxSpans);
  if (data.size() != comm.size()) return {};
  Curve rest = data;
  for (std::size_t i = 0; i < rest.size(); ++i) {
    rest[i].value = std::max(0.0, 1 - data[i].value - comm[i].value);
  }
  return {.title = "Time of rank 0",
          .unit = "shares of a step",
          .series = {{"computing", rest, 0, LineStyle::kLine},
                     {"waiting for other ranks", comm, 1, LineStyle::kLine},
                     {"waiting for data", data, 3, LineStyle::kLine}},
          .scale = ChartScale::kShares};
}

/// A chart of the GPUs on rank 0's host, with a curve for each.
struct GpuChart {
  const char *title, *unit, *field;
  double factor = 1;  ///< applied to the field's values
  ChartScale scale = ChartScale::kFromZero;
};
constexpr std::array kGpuCharts = {
    GpuChart{
        .title = "GPU utilization", .unit = "percent of the time", .field = "utilization", .factor = 100},
    GpuChart{
        .title = "GPU memory", .unit = "GiB, all processes", .field = "memory_used_bytes", .factor = 0x1p-30},
    GpuChart{.title = "GPU power", .unit = "W", .field = "power_w"},
    GpuChart{.title = "GPU temperature",
             .unit = "degrees Celsius",
             .field = "temperature_c",
             .scale = ChartScale::kFitted}};

Chart gpu_chart(const RunData& run, const GpuChart& row) {
  constexpr int kMaxGpus = 16, kNumColours = 4;  // of the page's style sheet
  Chart chart{.title = row.title, .unit = row.unit, .series = {}, .scale = row.scale};
  for (int gpu = 0; gpu < kMaxGpus; ++gpu) {
    Curve curve = run.curve(text("gpu_", gpu, "_", row.field));
    for (auto& point : curve) point.value *= row.factor;
    if (!curve.empty())
      chart.series.push_back({text("GPU ", gpu), curve, gpu % kNumColours, LineStyle::kLine});
  }
  return chart;
}

std::string charts(const RunData& run) {
  std::string out = figure_of(loss_chart(run));
  std::vector<std::string> metrics = measures_of(run);
  metrics.pop_back();
  for (const std::string& metric : metrics) out += figure_of(metric_chart(run, metric));
  out += figure_of({.title = "Throughput",
                    .unit = "samples/s, all ranks",
                    .series = with_mean("samples/s", run.curve("samples_per_s")),
                    .scale = ChartScale::kFromZero});
  out += figure_of(time_chart(run));
  out += figure_of({.title = "Learning rate",
                    .unit = "",
                    .series = {{"learning rate", run.curve("lr"), 0, LineStyle::kLine}},
                    .scale = ChartScale::kFromZero});
  out += figure_of({.title = "Batch",
                    .unit = "samples per step",
                    .series = {{"batch", run.curve("batch"), 0, LineStyle::kLine}},
                    .scale = ChartScale::kFromZero});
  out += figure_of({.title = "Gradient norm",
                    .unit = "before clipping",
                    .series = with_mean("2-norm", run.curve("grad_norm")),
                    .scale = ChartScale::kAuto});
  out += figure_of({.title = "Gradient noise scale",
                    .unit = "samples",
                    .series = {{"noise scale", run.curve("noise_scale"), 0, LineStyle::kLine}},
                    .scale = ChartScale::kFromZero});
  out += figure_of({.title = "Loss scale",
                    .unit = "",
                    .series = {{"loss scale", run.curve("loss_scale"), 0, LineStyle::kLine}},
                    .scale = ChartScale::kAuto});
  for (const GpuChart& row : kGpuCharts) out += figure_of(gpu_chart(run, row));
  if (out.empty()) return "<p class=\"sub\">No step was written down.</p>\n";
  return text("<div class=\"charts\">\n", out, "</div>\n");
}

Facts results(const RunData& run) {
  Facts rows;
  for (const auto& [name, value] : run.summary.fields) {
    if (name == "name" || name == "status" || name.starts_with("memory_") || name.starts_with("loading_") ||
        name.starts_with("goodput") || name.starts_with("adapt_") || name == "lost_steps" ||
        name == "interruptions")
      continue;
    const auto* words = std::get_if<std::string>(&value);
    rows.emplace_back(title_of(name),
                      words != nullptr ? *words : in_words(name, run.summary.number(name, 0)));
  }
  return rows;
}

/// Memory of a rank by use, at the peak. For its state also the bytes before an update, measured and by
/// formula.
Facts memory(const RunData& run) {
  Facts rows;
  for (const char* kind : {"weights", "gradients", "optimizer", "activations", "communication"}) {
    std::vector<std::string> parts;
    const auto add = [&](const char* column, const char* words) {
      const auto bytes = run.result(text("memory_", column, "_", kind, "_bytes"));
      if (bytes) parts.push_back(text(human_bytes(static_cast<std::uint64_t>(std::max(*bytes, 0.0))), words));
    };
    add("peak", "");
    add("update", " before an update");
    add("formula", " by formula");
    add("device_peak", " on the device");
    add("device_update", " there before an update");
    if (!parts.empty()) rows.emplace_back(kind, join(parts, ", "));
  }
  return rows;
}

std::string percent(double share) { return text(std::round(share * 1000) / 10, " %"); }

/// Shares of the time of all starts of the run.
Facts goodput(const RunData& run) {
  Facts rows;
  const auto share = [&](const char* title, const char* field) {
    if (const auto found = run.result(field)) rows.emplace_back(title, percent(*found));
  };
  share("training", "goodput");
  share("waiting for data", "goodput_data_wait");
  share("saving", "goodput_saving");
  share("evaluation", "goodput_evaluation");
  share("lost steps", "goodput_lost");
  share("starting", "goodput_starting");
  share("recovering", "goodput_recovering");
  if (const auto wall = run.result("goodput_wall_s")) rows.emplace_back("of", human_duration(*wall));
  if (const auto steps = run.result("lost_steps"))
    rows.emplace_back("steps done twice", short_number(*steps));
  if (const auto count = run.result("interruptions"))
    rows.emplace_back("interruptions", short_number(*count));
  return rows;
}

/// Waits of ranks for data, and how loading threads spent their time.
Facts loading(const RunData& run) {
  Facts rows;
  for (int rank = 0;; ++rank) {
    const auto share = run.result(text("loading_wait_rank_", rank));
    if (!share) break;
    const std::string stage = run.summary.words(text("loading_slowest_stage_rank_", rank));
    const auto samples = run.result(text("loading_samples_rank_", rank));
    rows.emplace_back(text("rank ", rank, " waited"),
                      text(percent(*share), stage.empty() ? "" : ", slowest stage: " + stage,
                           samples ? text(", takes ", *samples, " samples of a batch") : ""));
  }
  for (const char* stage : {"read", "decode", "transform", "collate", "copy"}) {
    if (const auto share = run.result(text("loading_", stage)))
      rows.emplace_back(stage, percent(*share) + " of what threads did");
  }
  if (const auto fill = run.result("loading_fill")) rows.emplace_back("read ahead", percent(*fill) + " full");
  if (const auto workers = run.result("loading_workers"))
    rows.emplace_back("threads", short_number(*workers));
  if (const auto bytes = run.result("loading_read_bytes"))
    rows.emplace_back("read in all", human_bytes(static_cast<std::uint64_t>(*bytes)));
  const auto hits = run.result("loading_cache_hits"), misses = run.result("loading_cache_misses");
  if (const double all = hits.value_or(0) + misses.value_or(0); all > 0)
    rows.emplace_back("from the cache", percent(hits.value_or(0) / all));
  if (const auto retries = run.result("loading_retries"))
    rows.emplace_back("reads repeated", short_number(*retries));
  if (const auto skipped = run.result("loading_skipped"))
    rows.emplace_back("samples replaced", short_number(*skipped));
  return rows;
}

/// One card per table of config.toml.
std::string settings(const RunData& run) {
  std::string out;
  for (auto row = run.config.begin(); row != run.config.end();) {
    const std::string table = row->first.substr(0, row->first.find('.'));
    Facts rows;
    for (; row != run.config.end() && row->first.starts_with(table + "."); ++row) {
      rows.emplace_back(row->first.substr(table.size() + 1), row->second.empty() ? "-" : row->second);
    }
    if (rows.empty()) rows.push_back(*row++);  // a key outside of all tables
    out += card(table, rows);
  }
  return out.empty() ? out : text("<h2>Settings</h2>\n<div class=\"settings\">\n", out, "</div>\n");
}

std::string subtitle(const RunData& run) {
  std::vector<std::string> parts;
  if (!run.setting("model.name").empty()) {
    parts.push_back(text(run.setting("model.name"), " on ", run.setting("data.name")));
  }
  if (const auto ranks = run.result("world_size")) {
    parts.push_back(text(short_number(*ranks), *ranks == 1 ? " rank" : " ranks"));
  }
  parts.push_back(text(run.steps, run.steps == 1 ? " step" : " steps"));
  if (run.changed_unix_ns > 0) parts.push_back(calendar_time(run.changed_unix_ns / 1000000000));
  return escape_html(join(parts, " \xC2\xB7 "));
}

}  // namespace

std::string report_page(const ReportData& data) {
  const RunData& run = data.run;
  const std::string name = escape_html(run.name), status = escape_html(run.status);
  const std::string head =
      text("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
           "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>", name,
           " - Trireme</title>\n<style>", kReportStyle, "</style>\n</head>\n");
  const std::string title = text("<h1>", name, "<span class=\"status ", status, "\">", status,
                                 "</span></h1>\n<p class=\"sub\">", subtitle(run), "</p>\n");
  const std::string tables = text(
      "<h2>Results and machine</h2>\n<div class=\"tables\">\n", card("Results", results(run)),
      card("Goodput: shares of the wall time of all starts", goodput(run)),
      card("Memory of the largest rank at its peak", memory(run)), card("Loading", loading(run)),
      card("Decisions of train.adapt", run.decisions), card("Machine of rank 0", data.machine), "</div>\n");
  return text(
      head, "<body>\n", title, tiles(run), "<h2>Curves</h2>\n", charts(run), tables, settings(run),
      "<footer>Made by Trireme from config.toml, metrics.jsonl and summary.json of this run.</footer>\n",
      "</body>\n</html>\n");
}

void write_report(const std::filesystem::path& folder) {
  ReportData data{.run = read_run(folder), .machine = facts_of_this_machine()};
  // The run that writes its page still holds its lock. Its end is already in end.json.
  if (const std::optional<RunEnd> end = read_run_end(folder / "end.json")) data.run.status = end->status;
  write_file_atomic(folder / "report.html", report_page(data));
}

}  // namespace trireme::telemetry
