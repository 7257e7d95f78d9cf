#include "cli/plan_page.h"

#include <cmath>

#include "cli/quantities.h"
#include "trireme/base/text.h"
#include "trireme/telemetry/line_chart.h"
#include "trireme/telemetry/page_text.h"
#include "trireme/telemetry/report_style.h"

namespace trireme::cli {
namespace {

using telemetry::escape_html;

constexpr const char* kPlanStyle = R"css(
.plans { overflow-x: auto; }
.plans table { min-width: 640px; }
figure { max-width: 640px; }
.plans th { padding: 3px 0; text-align: left; font-weight: 600; }
.plans td, .plans th { padding-right: 16px; }
.plans td:first-child, .plans td:nth-child(2), .plans th:first-child, .plans th:nth-child(2) {
  text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; color: var(--ink); }
.plans td:last-child { text-align: left; color: var(--soft); }
pre { margin: 0; overflow-x: auto; font-size: 13.5px; }
)css";

class PlanPage {
 public:
  PlanPage(const train::PlanSearch& search, const std::string& title, int world_size)
      : search_(search), title_(escape_html(title)), world_size_(world_size) {}

  std::string text_of_page() const {
    std::string page =
        text("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
             "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Plans for ",
             title_, " - Trireme</title>\n<style>", telemetry::kReportStyle, kPlanStyle,
             "</style>\n</head>\n", "<body>\n<h1>Plans for ", title_, "</h1>\n<p class=\"sub\">", world_size_,
             world_size_ == 1 ? " rank" : " ranks");
    if (search_.limit_bytes > 0) page += text(", ", in_bytes(search_.limit_bytes), " of memory per rank");
    page += text(", ", search_.estimated, " plans estimated</p>\n", best(), "<h2>Time against memory</h2>\n",
                 figure_of(chart()), "<h2>All plans</h2>\n", table(),
                 "<footer>Made by trireme plan.</footer>\n", "</body>\n</html>\n");
    return page;
  }

 private:
  std::string best() const {
    if (search_.plans.empty()) return "<p>No plan fits into the memory.</p>\n";
    const train::PlannedStep& best = search_.plans.front();
    return text("<div class=\"card\"><h3>Fastest: ", escape_html(train::in_words(best.config, world_size_)),
                "</h3><pre>", escape_html(train::to_toml(best.settings)), "</pre></div>\n");
  }

  /// The x-axis is memory in whole MiB. Of plans with equal memory the fastest is drawn.
  telemetry::Chart chart() const {
    telemetry::Series frontier{.name = "no other plan is faster and smaller",
                               .points = {},
                               .colour = 0,
                               .style = telemetry::LineStyle::kDots};
    const std::vector<const train::PlannedStep*> plans = search_.frontier();
    for (auto plan = plans.rbegin(); plan != plans.rend(); ++plan) {
      const double mib = std::round(static_cast<double>((*plan)->memory_bytes) / 0x1p20);
      const double ms = 1e3 * (*plan)->step_s;
      if (!frontier.points.empty() && frontier.points.back().step == mib)
        frontier.points.back().value = ms;
      else
        frontier.points.push_back({mib, ms});
    }
    return {.title = "Time of a step over the memory of a rank",
            .unit = "ms",
            .series = {std::move(frontier)},
            .scale = telemetry::ChartScale::kFromZero,
            .axis = "MiB"};
  }

  std::string table() const {
    std::string rows =
        "<div class=\"card plans\"><table>\n<tr><th>step ms</th><th>memory</th><th>plan</th><th>why "
        "not</th></tr>\n";
    const train::PlannedStep& best =
        search_.plans.empty() ? search_.too_large.front() : search_.plans.front();
    for (const auto* plans : {&search_.plans, &search_.too_large}) {
      for (const train::PlannedStep& plan : *plans) {
        const bool is_best = &plan == &best && !search_.plans.empty();
        rows += text(
            "<tr><td>", telemetry::short_number(1e3 * plan.step_s), "</td><td>", in_bytes(plan.memory_bytes),
            "</td><td>", escape_html(train::in_words(plan.config, world_size_)), "</td><td>",
            is_best ? "" : escape_html(train::why_not(plan, best, search_.limit_bytes)), "</td></tr>\n");
      }
    }
    return rows + "</table></div>\n";
  }

  const train::PlanSearch& search_;
  const std::string title_;
  const int world_size_;
};

}  // namespace

std::string plan_page(const train::PlanSearch& search, const std::string& title, int world_size) {
  return PlanPage(search, title, world_size).text_of_page();
}

}  // namespace trireme::cli
