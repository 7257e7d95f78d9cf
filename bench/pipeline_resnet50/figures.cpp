#include "bench/pipeline_resnet50/figures.h"

#include <algorithm>
#include <cmath>
#include <iomanip>

#include "trireme/base/text.h"
#include "trireme/telemetry/page_text.h"

namespace trireme::bench {
namespace {

constexpr double kWidth = 560, kHeight = 330;
constexpr double kLeft = 52, kRight = 12, kTop = 22, kBottom = 52;

std::string px(double value) { return text(std::fixed, std::setprecision(1), value); }

std::string words(double x, double y, const std::string& anchor, const std::string& content) {
  return text("<text x=\"", px(x), "\" y=\"", px(y), "\" text-anchor=\"", anchor, "\">",
              telemetry::escape_html(content), "</text>\n");
}

std::string line(const char* style, double x1, double y1, double x2, double y2) {
  return text("<line class=\"", style, "\" x1=\"", px(x1), "\" y1=\"", px(y1), "\" x2=\"", px(x2), "\" y2=\"",
              px(y2), "\"/>\n");
}

/// A step of 1, 2 or 5 times a power of ten, such that about five steps make `largest`.
double step_of(double largest) {
  const double rough = largest / 5, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= rough) return factor * power;
  return 10 * power;
}

/// A linear axis from 0, upwards.
class YAxis {
 public:
  explicit YAxis(double largest) : step_(step_of(largest)), top_(std::ceil(largest / step_) * step_) {}

  double at(double value) const { return kHeight - kBottom - value / top_ * (kHeight - kTop - kBottom); }

  std::string drawn(const std::string& unit) const {
    std::string svg = words(kLeft, kTop - 9, "end", unit);
    for (double value = 0; value <= top_ * (1 + 1e-9); value += step_) {
      svg += line(value == 0 ? "axis" : "grid", kLeft, at(value), kWidth - kRight, at(value));
      svg += words(kLeft - 6, at(value) + 4, "end", telemetry::short_number(value, 3));
    }
    return svg;
  }

 private:
  double step_, top_;
};

std::string error_bar(double x, const YAxis& axis, const Spread& value) {
  constexpr double kCap = 5;
  const double low = axis.at(value.low), high = axis.at(value.high);
  return line("error", x, low, x, high) + line("error", x - kCap, low, x + kCap, low) +
         line("error", x - kCap, high, x + kCap, high);
}

std::string element(const std::string& body) {
  return text("<svg viewBox=\"0 0 ", px(kWidth), " ", px(kHeight), "\" role=\"img\">\n", body, "</svg>\n");
}

std::string title_of(const Spread& value, const std::string& unit) {
  return text("<title>", telemetry::short_number(value.median), " ", unit, " (",
              telemetry::short_number(value.low), " to ", telemetry::short_number(value.high), ")</title>");
}

}  // namespace

std::string bar_figure(const std::vector<Bar>& bars, const std::string& unit) {
  double largest = 0;
  for (const Bar& bar : bars) largest = std::max(largest, bar.value.high);
  const YAxis axis(1.08 * largest);  // leaves space for the numbers
  std::string svg = axis.drawn(unit);
  const double room = (kWidth - kLeft - kRight) / static_cast<double>(std::max<std::size_t>(bars.size(), 1));
  for (std::size_t i = 0; i < bars.size(); ++i) {
    const Bar& bar = bars[i];
    const double middle = kLeft + (static_cast<double>(i) + 0.5) * room, width = std::min(0.5 * room, 90.0);
    const double top = axis.at(bar.value.median);
    svg += text("<rect class=\"bar s", i % 4, "\" x=\"", px(middle - width / 2), "\" y=\"", px(top),
                "\" width=\"", px(width), "\" height=\"", px(axis.at(0) - top), "\">",
                title_of(bar.value, unit), "</rect>\n");
    svg += error_bar(middle, axis, bar.value);
    svg += words(middle, axis.at(bar.value.high) - 6, "middle",
                 text(std::fixed, std::setprecision(2), bar.value.median));
    double y = axis.at(0) + 17;
    for (const std::string& part : split(bar.label, '|')) {
      svg += words(middle, y, "middle", part);
      y += 14;
    }
  }
  return element(svg);
}

std::string line_figure(const std::vector<Point>& points, const Reference& reference,
                        const std::string& x_title, const std::string& unit) {
  double largest = reference.value, min_x = points.front().x, max_x = points.front().x;
  for (const Point& point : points) {
    largest = std::max({largest, point.measured.high, point.ideal});
    min_x = std::min(min_x, point.x);
    max_x = std::max(max_x, point.x);
  }
  const YAxis axis(1.02 * largest);
  const double range = std::max(std::log(max_x / min_x), 1e-9);
  const auto x_of = [&](double x) {
    return kLeft + 16 + std::log(x / min_x) / range * (kWidth - kLeft - kRight - 32);
  };
  std::string svg = axis.drawn(unit), measured, ideal, marks;
  for (const Point& point : points) {
    const double x = x_of(point.x);
    measured += text(px(x), ",", px(axis.at(point.measured.median)), " ");
    ideal += text(px(x), ",", px(axis.at(point.ideal)), " ");
    marks += error_bar(x, axis, point.measured);
    marks += text("<circle class=\"dot s2\" cx=\"", px(x), "\" cy=\"", px(axis.at(point.measured.median)),
                  "\" r=\"4\">", title_of(point.measured, unit), "</circle>\n");
    svg += words(x, axis.at(0) + 17, "middle", text(point.x));
  }
  svg += line("reference", kLeft, axis.at(reference.value), kWidth - kRight, axis.at(reference.value));
  svg += words(kWidth - kRight, axis.at(reference.value) - 5, "end", reference.label);
  svg += text("<polyline class=\"ideal\" points=\"", ideal, "\"/>\n<polyline class=\"line s2\" points=\"",
              measured, "\"/>\n", marks);
  svg += words((kLeft + kWidth - kRight) / 2, kHeight - 12, "middle", x_title);
  return element(svg);
}

}  // namespace trireme::bench
