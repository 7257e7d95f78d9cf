#include "trireme/schedule/timeline_page.h"

#include <algorithm>
#include <iomanip>

#include "trireme/base/error.h"
#include "trireme/schedule/internal/look.h"
#include "trireme/schedule/internal/timeline_style.h"

namespace trireme::schedule {
namespace {

constexpr double kWidth = 1200;
constexpr double kLeft = 130;
constexpr double kRight = 66;  ///< room for the bubble shares
constexpr double kTop = 22;
constexpr double kRow = 22;
constexpr double kBox = 18;
constexpr double kBetweenRanks = 12;
constexpr double kAxis = 24;
constexpr double kBeside = 4;       ///< height of boxes for concurrent work
constexpr double kMinShare = 1e-4;  ///< of a step; shorter actions that are not work are not drawn
constexpr double kBody = kWidth - kLeft - kRight;

/// Milliseconds with four decimals.
std::string milliseconds(double seconds) {
  return text(std::fixed, std::setprecision(4), std::max(0.0, 1e3 * seconds));
}

std::string share_text(double share) { return text(std::fixed, std::setprecision(1), 100 * share, " %"); }

std::string duration(double seconds) { return number(1e3 * seconds) + " ms"; }

/// One row per rank: the plan, or a measured step.
struct Layer {
  std::string name;
  TimedRanks ranks;
  Span extent = {};
  std::vector<double> bubbles = {};
};

/// The look of kinds that have a narrow box under those of the rank.
const Look* look_beside(ActionKind kind) {
  const auto looks = looks_beside();
  const auto found = std::ranges::find(looks, kind, &Look::kind);
  return found == looks.end() ? nullptr : &*found;
}

bool is_drawn(ActionKind kind) { return look_of(kind) != nullptr || look_beside(kind) != nullptr; }

Layer layer_of(std::string name, TimedRanks ranks) {
  Layer layer{.name = std::move(name), .ranks = std::move(ranks)};
  layer.extent = extent(layer.ranks);
  layer.bubbles = bubble_shares(layer.ranks);
  const double min_s = kMinShare * (layer.extent.end - layer.extent.start);
  for (auto& actions : layer.ranks) {
    std::erase_if(actions, [&](const TimedAction& each) {
      const bool is_seen = is_work(each.action) || each.end_s - each.start_s >= min_s;
      return !is_drawn(each.action.kind) || !is_seen;
    });
  }
  for (const auto& actions : layer.ranks) {
    for (const TimedAction& each : actions) layer.extent.end = std::max(layer.extent.end, each.end_s);
  }
  return layer;
}

std::vector<Layer> layers_of(const TimelinePage& page) {
  const Program& program = page.program;
  const std::size_t of_program = program.ranks.size();
  const std::size_t ranks = page.steps.empty() ? of_program : page.steps.front().ranks.size();
  for (const MeasuredStep& step : page.steps) {
    require(step.ranks.size() == ranks && ranks > 0 && ranks % of_program == 0, step.name,
            " was measured on ", step.ranks.size(), " ranks, the program '", program.name, "' is for ",
            of_program);
  }
  const TimedRanks once = timed(program, simulate(program, page.costs));
  TimedRanks planned;
  for (std::size_t rank = 0; rank < ranks; ++rank) planned.push_back(once[rank / (ranks / of_program)]);
  std::vector<Layer> layers = {layer_of("planned", std::move(planned))};
  for (const MeasuredStep& step : page.steps) layers.push_back(layer_of(step.name, step.ranks));
  return layers;
}

class Chart {
 public:
  explicit Chart(const TimelinePage& page) : program_(page.program), layers_(layers_of(page)) {
    for (const Layer& layer : layers_) end_s_ = std::max(end_s_, layer.extent.end - layer.extent.start);
    if (end_s_ <= 0) end_s_ = 1e-3;
  }

  const std::vector<Layer>& layers() const { return layers_; }
  std::size_t num_ranks() const { return layers_.front().ranks.size(); }

  std::string svg() const {
    const double of_rank = kRow * static_cast<double>(layers_.size()) + kBetweenRanks;
    const double bottom = kTop + static_cast<double>(num_ranks()) * of_rank - kBetweenRanks + 4;
    std::string body = text("<text class=\"share\" x=\"", number(kWidth),
                            "\" y=\"14\">bubble</text>\n<g id=\"ticks\" data-top=\"", number(kTop - 4),
                            "\" data-bottom=\"", number(bottom), "\"></g>\n");
    std::string boxes;
    for (std::size_t rank = 0; rank < num_ranks(); ++rank) {
      const double top = kTop + static_cast<double>(rank) * of_rank;
      body += text("<text class=\"rank\" x=\"0\" y=\"", number(top + 13), "\">rank ", rank, "</text>\n");
      for (std::size_t i = 0; i < layers_.size(); ++i)
        row(layers_[i], rank, top + static_cast<double>(i) * kRow, body, boxes);
    }
    return text("<svg id=\"timeline\" class=\"plane\" viewBox=\"0 0 ", number(kWidth), " ",
                number(bottom + kAxis), "\" data-left=\"", number(kLeft), "\" data-width=\"", number(kBody),
                "\" data-end=\"", milliseconds(end_s_),
                "\" role=\"img\">\n<defs><clipPath id=\"body\"><rect x=\"", number(kLeft),
                "\" y=\"0\" width=\"", number(kBody), "\" height=\"", number(bottom),
                "\"/></clipPath></defs>\n", body, "<g clip-path=\"url(#body)\">\n", boxes, "</g>\n</svg>\n");
  }

 private:
  void row(const Layer& layer, std::size_t rank, double y, std::string& body, std::string& boxes) const {
    body += text("<text x=\"56\" y=\"", number(y + 13), "\">", escaped(layer.name), "</text>\n<rect x=\"",
                 number(kLeft), "\" y=\"", number(y), "\" width=\"", number(kBody), "\" height=\"",
                 number(kBox), "\" class=\"lane\"/>\n<text class=\"share\" x=\"", number(kWidth), "\" y=\"",
                 number(y + 13), "\">", share_text(layer.bubbles[rank]), "</text>\n");
    for (const TimedAction& each : layer.ranks[rank]) {
      const TimedAction shown{each.action, each.start_s - layer.extent.start,
                              each.end_s - layer.extent.start};
      const Look* beside = look_beside(each.action.kind);
      beside == nullptr ? box(*look_of(each.action.kind), shown, y, kBox, boxes)
                        : box(*beside, shown, y + kBox - kBeside, kBeside, boxes);
    }
  }

  void box(const Look& look, const TimedAction& each, double y, double height, std::string& boxes) const {
    const double x = kLeft + each.start_s / end_s_ * kBody;
    const double width = std::max((each.end_s - each.start_s) / end_s_ * kBody, 0.8);
    const bool first_chunk = each.action.stage < static_cast<int>(program_.ranks.size());
    boxes += text("<g class=\"b\" data-s=\"", milliseconds(each.start_s), "\" data-e=\"",
                  milliseconds(each.end_s), "\"");
    if (each.action.microbatch >= 0) boxes += text(" data-m=\"", each.action.microbatch, "\"");
    boxes += text("><rect x=\"", number(x), "\" y=\"", number(y), "\" width=\"", number(width),
                  "\" height=\"", number(height), "\" fill=\"", first_chunk ? look.light : look.dark,
                  "\"><title>", schedule::to_text(each.action), ": ", duration(each.end_s - each.start_s),
                  ", from ", duration(each.start_s), "</title></rect>");
    if (each.action.microbatch >= 0) {
      const std::string label = text(each.action.microbatch);
      const bool fits = width >= 7 + 6.5 * static_cast<double>(label.size());
      boxes += text("<text class=\"", first_chunk ? "n" : "n w", "\" x=\"", number(x + width / 2), "\" y=\"",
                    number(y + 13), fits ? "\">" : "\" style=\"display:none\">", label, "</text>");
    }
    boxes += "</g>\n";
  }

  const Program& program_;
  const std::vector<Layer> layers_;
  double end_s_ = 0;
};

/// One entry for each kind of action that any row has.
std::string legend(const std::vector<Layer>& layers, const Program& program) {
  const bool chunks = program.num_stages > static_cast<int>(program.ranks.size());
  std::string keys = "<div class=\"keys\">";
  std::vector<Look> all(looks().begin(), looks().end());
  all.insert(all.end(), looks_beside().begin(), looks_beside().end());
  for (const Look& look : all) {
    const bool used = std::any_of(layers.begin(), layers.end(), [&](const Layer& layer) {
      return std::any_of(layer.ranks.begin(), layer.ranks.end(), [&](const auto& actions) {
        return std::any_of(actions.begin(), actions.end(),
                           [&](const TimedAction& each) { return each.action.kind == look.kind; });
      });
    });
    if (!used) continue;
    keys += text("<span><i style=\"background:", look.light, "\"></i>");
    if (chunks && look.light != look.dark) keys += text("<i style=\"background:", look.dark, "\"></i>");
    keys += text(look.name, "</span>");
  }
  if (chunks) keys += "<span>light: a rank's first stage, dark: later ones</span>";
  return keys + "<span><i class=\"lane\"></i>bubble: nothing is computed</span></div>\n";
}

/// The step time and the bubble shares of each row.
std::string table(const std::vector<Layer>& layers) {
  std::string rows = "<div class=\"wide\"><table><tr><th></th><th>first start to end of the update</th>";
  for (std::size_t rank = 0; rank < layers.front().ranks.size(); ++rank)
    rows += text("<th>bubble, rank ", rank, "</th>");
  rows += "</tr>\n";
  for (const Layer& layer : layers) {
    rows += text("<tr><td>", escaped(layer.name), "</td><td>",
                 duration(layer.extent.end - layer.extent.start), "</td>");
    for (const double share : layer.bubbles) rows += text("<td>", share_text(share), "</td>");
    rows += "</tr>\n";
  }
  return rows + "</table></div>\n";
}

std::string table_of_stages(const std::vector<std::string>& stages) {
  if (stages.empty()) return "";
  std::string rows = "<table><tr><th>stage</th><th>layers</th></tr>\n";
  for (std::size_t stage = 0; stage < stages.size(); ++stage)
    rows += text("<tr><td>", stage, "</td><td>", escaped(stages[stage]), "</td></tr>\n");
  return rows + "</table>\n";
}

}  // namespace

std::string timeline_page(const TimelinePage& page) {
  const Chart chart(page);
  std::string html = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<title>";
  html += text(escaped(page.title), "</title>\n<style>", kTimelineStyle, "</style></head>\n<body>\n<h1>",
               escaped(page.title), "</h1>\n<p>Schedule ", escaped(page.program.name), ", ",
               counted(static_cast<double>(chart.num_ranks()), "rank"), ", ",
               counted(page.program.num_stages, "stage"), ", ",
               counted(page.program.num_microbatches, "micro-batch", "es"),
               ". Planned: the program simulated with the mean ",
               "times of the measured actions, messages taking no time. ", escaped(page.remark), "</p>\n");
  html +=
      "<div class=\"bar\"><button id=\"closer\">+</button><button id=\"wider\">&minus;</button><button "
      "id=\"all\">all</button> milliseconds; wheel: zoom, drag: move, double click: all; a box under the "
      "mouse shows its micro-batch everywhere</div>\n";
  html += chart.svg() + legend(chart.layers(), page.program) + table(chart.layers()) +
          table_of_stages(page.stages);
  return html + text("<script>", kTimelineScript, "</script>\n</body></html>\n");
}

}  // namespace trireme::schedule
