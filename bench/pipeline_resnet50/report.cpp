#include "bench/pipeline_resnet50/report.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <nlohmann/json.hpp>

#include "bench/pipeline_resnet50/figures.h"
#include "trireme/base/text.h"
#include "trireme/telemetry/machine.h"
#include "trireme/telemetry/page_text.h"
#include "trireme/telemetry/report_style.h"

namespace trireme::bench {
namespace {

constexpr const char* kPublished =
    "Published, on two GPUs (PyTorch tutorial \"Single-Machine Model Parallel Best Practices\", "
    "pytorch/tutorials model_parallel_tutorial.py; 3 batches of 120 images of 128x128): one device 3.75 s, "
    "naive "
    "4.02 s (7 % slower), pipelined 2.51 s at split 20 (49 % faster) and 2.43 s at best (split 12, 54 % "
    "faster); "
    "equal stages and 10 micro-batches could be 82 % faster.";

constexpr const char* kMeaning =
    "The ideal is the step's program, simulated with the mean times that its own actions took in the same "
    "step "
    "(trace spans, both ranks busy, waiting left out), messages that take no time, and each rank's update "
    "behind its "
    "last action. Equal stages: 2M / (M + 1) of one process for M micro-batches.";

constexpr const char* kOwnStyle =
    ".bar { fill: var(--colour); }\n.error { stroke: var(--ink); stroke-width: 1.3; }\n"
    ".reference { stroke: var(--c0); stroke-width: 1.5; }\n"
    ".ideal { fill: none; stroke: var(--axis); stroke-width: 1.5; stroke-dasharray: 5 4; }\n"
    ".card { overflow-x: auto; margin-top: 14px; } .wide td, .wide th { text-align: right; padding: 3px 0 "
    "3px 14px; "
    "white-space: nowrap; font-variant-numeric: tabular-nums; }\n.wide th { font-weight: 600; font-size: "
    "12.5px; }\n"
    ".wide td:first-child, .wide th:first-child { text-align: left; }\n.note { max-width: 110ch; color: "
    "var(--soft); }\n";

std::string fixed(double value, int digits) { return text(std::fixed, std::setprecision(digits), value); }

/// "+49 %"
std::string gain(double faster) {
  return text(std::showpos, std::fixed, std::setprecision(0), 100 * faster, " %");
}

std::string range(const Spread& value, int digits) {
  return text(fixed(value.low, digits), "-", fixed(value.high, digits));
}

std::string name_of(const Way& way) {
  return way.name == "single" ? "one process" : way.name == "naive" ? "naive, two stages" : way.name;
}

/// Gain of two equal stages without any overhead.
double gain_of_equal_stages(int num_microbatches) {
  return 2.0 * num_microbatches / (num_microbatches + 1) - 1;
}

const std::vector<std::string> kColumns = {
    "way",      "split",        "micro-batches", "step, s", "min-max", "faster", "equal stages",
    "ideal, s", "of the ideal", "min-max",       "F0",      "B0",      "F1",     "B1"};

/// Cells of a row, in the order of kColumns. Stage times are milliseconds per image.
std::vector<std::string> cells_of(const Way& way, const Way& single) {
  const Summary summary = summary_of(way, single);
  std::vector<std::string> cells = {name_of(way),
                                    text(way.split),
                                    text(way.num_microbatches),
                                    fixed(summary.seconds.median, 3),
                                    range(summary.seconds, 3),
                                    way.name == "single" ? "" : gain(summary.faster)};
  if (way.ideal_s.empty()) {
    cells.resize(kColumns.size());
    return cells;
  }
  cells.push_back(gain(gain_of_equal_stages(way.num_microbatches)));
  cells.push_back(fixed(summary.ideal_s.median, 3));
  cells.push_back(fixed(summary.of_the_ideal.median, 3));
  cells.push_back(range(summary.of_the_ideal, 3));
  for (const schedule::StageCost& stage : way.costs.stages) {
    const double per_image = 1e3 / static_cast<double>(way.split);
    cells.push_back(fixed(per_image * stage.forward, 2));
    cells.push_back(fixed(per_image * (stage.backward_input + stage.backward_weight), 2));
  }
  return cells;
}

std::string what_was_done(const SweepOptions& options) {
  return text("ResNet-50 cut behind layer2, batch ", options.batch, " of ", options.image_size, "x",
              options.image_size, " images, MSE, SGD; two ranks of one thread, schedule ", options.schedule,
              ", convolutions ", options.convolution, "; ", options.repeats,
              options.repeats == 1 ? " pass," : " passes, median (smallest-largest)");
}

Point point_of(const Way& way) {
  return {.x = static_cast<double>(way.split),
          .measured = spread_of(way.seconds),
          .ideal = spread_of(way.ideal_s).median};
}

std::vector<Way> pipelined(const std::vector<Way>& ways) {
  std::vector<Way> result;
  std::copy_if(ways.begin(), ways.end(), std::back_inserter(result),
               [](const Way& way) { return way.name == "pipelined"; });
  return result;
}

std::string figures(const std::vector<Way>& ways) {
  const std::vector<Way> pipes = pipelined(ways);
  std::vector<Bar> bars = {{"one process", spread_of(ways[0].seconds)},
                           {"naive|two stages", spread_of(ways[1].seconds)}};
  std::vector<Point> points;
  const Way* best = nullptr;
  for (const Way& way : pipes) {
    points.push_back(point_of(way));
    if (best == nullptr || spread_of(way.seconds).median < spread_of(best->seconds).median) best = &way;
  }
  std::sort(points.begin(), points.end(), [](const Point& a, const Point& b) { return a.x < b.x; });
  if (best == nullptr) return "";
  for (const Way& way : pipes)
    if (way.split == 20 && way.split != best->split)
      bars.push_back({"pipelined|split 20", spread_of(way.seconds)});
  bars.push_back({text("pipelined|split ", best->split, " (best)"), spread_of(best->seconds)});
  return text(
      "<div class=\"charts\">\n<figure><figcaption>A step <small>median, smallest to largest</small>",
      "</figcaption>\n", bar_figure(bars, "s"),
      "</figure>\n<figure><figcaption>Pipelined, over the size of a micro-batch <small>dashed: the ideal of "
      "the measured stage times</small></figcaption>\n",
      line_figure(points, {"one process", spread_of(ways[0].seconds).median},
                  "images in a micro-batch (split size)", "s"),
      "</figure>\n</div>\n");
}

}  // namespace

Summary summary_of(const Way& way, const Way& single) {
  Summary summary{.seconds = spread_of(way.seconds), .ideal_s = {}, .of_the_ideal = {}};
  summary.faster = spread_of(single.seconds).median / summary.seconds.median - 1;
  if (way.ideal_s.empty()) return summary;
  summary.ideal_s = spread_of(way.ideal_s);
  std::vector<double> shares;
  for (std::size_t pass = 0; pass < way.seconds.size(); ++pass)
    shares.push_back(way.ideal_s[pass] / way.seconds[pass]);
  summary.of_the_ideal = spread_of(shares);
  return summary;
}

std::string report_table(const SweepOptions& options, const std::vector<Way>& ways) {
  std::vector<std::vector<std::string>> rows = {kColumns};
  for (const Way& way : ways) rows.push_back(cells_of(way, ways.front()));
  std::vector<std::size_t> widths(kColumns.size(), 0);
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string table = what_was_done(options) + "\n\n";
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - row[i].size(), ' ');
      table += i == 0 ? row[i] + space : "  " + space + row[i];
    }
    table.erase(table.find_last_not_of(' ') + 1);
    table += "\n";
  }
  return table + text("\nF0 B0 F1 B1: milliseconds per image of the stages' forward and backward.\n",
                      kMeaning, "\n", kPublished, "\n");
}

std::string report_json(const SweepOptions& options, const std::vector<Way>& ways) {
  nlohmann::ordered_json json = {{"question", "pipeline-resnet50"},
                                 {"batch", options.batch},
                                 {"image_size", options.image_size},
                                 {"schedule", options.schedule},
                                 {"convolution", options.convolution},
                                 {"passes", options.repeats},
                                 {"machine", nlohmann::ordered_json::object()},
                                 {"results", nlohmann::ordered_json::array()}};
  for (const auto& [what, value] : telemetry::facts_of_this_machine()) json["machine"][what] = value;
  for (const Way& way : ways) {
    const Summary summary = summary_of(way, ways.front());
    auto& row = json["results"].emplace_back();
    row = {{"way", way.name},
           {"split", way.split},
           {"microbatches", way.num_microbatches},
           {"median_s", summary.seconds.median},
           {"seconds", way.seconds},
           {"faster_than_single", summary.faster}};
    if (way.ideal_s.empty()) continue;
    row["ideal_s"] = way.ideal_s;
    row["of_the_ideal"] = summary.of_the_ideal.median;
    row["update_s"] = way.update_s;
    for (const schedule::StageCost& stage : way.costs.stages)
      row["stages"].push_back(
          {{"forward_s", stage.forward}, {"backward_s", stage.backward_input + stage.backward_weight}});
  }
  return json.dump(1) + "\n";
}

std::string report_page(const SweepOptions& options, const std::vector<Way>& ways) {
  std::string table = "<div class=\"card\"><table class=\"wide\">\n<tr>";
  for (const std::string& column : kColumns) table += text("<th>", column, "</th>");
  table += "</tr>\n";
  for (const Way& way : ways) {
    table += "<tr>";
    for (const std::string& cell : cells_of(way, ways.front())) table += text("<td>", cell, "</td>");
    table += "</tr>\n";
  }
  std::string machine;
  for (const auto& [what, value] : telemetry::facts_of_this_machine())
    machine += text(machine.empty() ? "" : "; ", what, " ", value);
  return text(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<title>ResNet-50 in two stages",
      "</title>\n<style>", telemetry::kReportStyle, kOwnStyle, "</style></head>\n<body>\n",
      "<h1>ResNet-50 in two stages</h1>\n<p class=\"sub\">", telemetry::escape_html(what_was_done(options)),
      "</p>\n", figures(ways), table,
      "</table></div>\n<p class=\"note\">F0 B0 F1 B1: milliseconds per image of the stages' forward and "
      "backward. ",
      kMeaning, "</p>\n<p class=\"note\">", telemetry::escape_html(kPublished), "</p>\n<footer>",
      telemetry::escape_html(machine), "</footer>\n</body></html>\n");
}

}  // namespace trireme::bench
