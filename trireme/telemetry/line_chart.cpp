#include "trireme/telemetry/line_chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "trireme/base/text.h"
#include "trireme/telemetry/page_text.h"

namespace trireme::telemetry {
namespace {

constexpr double kWidth = 560, kHeight = 250;
constexpr double kLeft = 52, kRight = 14, kTop = 12, kBottom = 40;
constexpr std::size_t kMaxPoints = 1000;
constexpr std::size_t kMaxStrips = 120;  // areas that show their values under the mouse

constexpr int kDigits = 4;  // of values; ticks get more if they would look equal

struct Axis {
  double low = 0;
  double high = 1;
  bool logarithmic = false;
  std::vector<double> ticks;
  int digits = kDigits;

  /// 0 at the low end, 1 at the high one.
  double place(double value) const {
    if (logarithmic) return std::log(std::max(value, low) / low) / std::log(high / low);
    return (value - low) / (high - low);
  }
};

/// Distance of about `count` ticks in the range: 1, 2 or 5 times a power of ten.
double tick_distance(double range, double count) {
  const double power = std::pow(10.0, std::floor(std::log10(range / count)));
  const double factor = range / count / power;
  return power * (factor < 1.5 ? 1 : factor < 3.5 ? 2 : factor < 7.5 ? 5 : 10);
}

std::vector<double> ticks_between(double low, double high, double distance) {
  std::vector<double> ticks;
  for (double n = std::ceil(low / distance - 1e-9); n * distance <= high + 1e-9 * distance; ++n) {
    ticks.push_back(n * distance);
  }
  return ticks;
}

/// Number of digits with which adjacent ticks differ.
int digits_of(double low, double high, double distance) {
  const double largest = std::max(std::abs(low), std::abs(high));
  return std::clamp(static_cast<int>(std::floor(std::log10(largest)) - std::floor(std::log10(distance))) + 1,
                    kDigits, 15);
}

Axis linear_axis(double low, double high, double distance) {
  return {low, high, false, ticks_between(low, high, distance), digits_of(low, high, distance)};
}

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

Axis step_axis(Range steps) {
  if (steps.high <= steps.low) steps.low = 0;  // a single point: the axis begins at step 0
  if (steps.high <= steps.low) return {0, 1, false, {0, 1}};
  const double distance = std::max(1.0, tick_distance(steps.high - steps.low, 6));
  return linear_axis(steps.low, steps.high, distance);
}

Axis logarithmic_axis(const Range& values) {
  const double first = std::floor(std::log10(values.low)), last = std::ceil(std::log10(values.high));
  Axis axis{std::pow(10.0, first), std::pow(10.0, last), true, {}};
  for (double n = first; n <= last; n += std::ceil((last - first) / 6))
    axis.ticks.push_back(std::pow(10.0, n));
  return axis;
}

Axis value_axis(Range values, ChartScale scale) {
  if (scale == ChartScale::kShares) return {0, 1, false, {0, 0.25, 0.5, 0.75, 1}};
  if (scale == ChartScale::kAuto && values.low > 0 && values.high > 200 * values.low) {
    return logarithmic_axis(values);
  }
  const bool are_shares = scale == ChartScale::kFitted && values.low >= 0 && values.high <= 1;
  // A range that begins near 0 is extended to 0.
  const bool near_zero = values.low > 0 && values.low < 0.3 * values.high;
  if (scale == ChartScale::kFromZero || near_zero) values.low = std::min(values.low, 0.0);
  if (values.high <= values.low) {
    const double margin = values.low == 0 ? 1 : 0.1 * std::abs(values.low);
    values = {values.low - (values.low == 0 ? 0 : margin), values.high + margin};
  }
  const double distance = tick_distance(values.high - values.low, 5);
  Range around = {std::floor(values.low / distance + 1e-9) * distance,
                  std::ceil(values.high / distance - 1e-9) * distance};
  if (are_shares) around = {std::max(around.low, 0.0), std::min(around.high, 1.0)};
  return linear_axis(around.low, around.high, distance);
}

std::string fixed(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.1f", value);
  return buffer;
}

/// The thinned series, on axes that contain all of them.
class Drawing {
 public:
  explicit Drawing(const Chart& chart) : chart_(chart) {
    Range steps, values;
    for (Series& series : chart_.series) {
      series.points = thinned(series.points, kMaxPoints);
      for (const Point& point : series.points) {
        steps.add(point.step);
        values.add(point.value);
      }
    }
    steps_ = step_axis(steps);
    values_ = value_axis(values, chart.scale);
    if (chart.scale == ChartScale::kShares) {  // a single point has no area
      for (Series& series : chart_.series) {
        if (series.points.size() == 1)
          series.points.insert(series.points.begin(), {steps_.low, series.points.front().value});
      }
    }
  }

  std::string svg() const {
    std::string out = text("<svg viewBox=\"0 0 ", kWidth, " ", kHeight, "\" role=\"img\"><title>",
                           escape_html(chart_.title), "</title>", axes());
    out += chart_.scale == ChartScale::kShares ? areas() : lines();
    return out + strips() + dots() + "</svg>";
  }

 private:
  double x(double step) const { return kLeft + steps_.place(step) * (kWidth - kLeft - kRight); }
  double y(double value) const {
    return kHeight - kBottom - values_.place(value) * (kHeight - kTop - kBottom);
  }
  std::string at(double step, double value) const { return text(fixed(x(step)), " ", fixed(y(value))); }

  std::string value_text(double value, int digits = kDigits) const {
    return chart_.scale == ChartScale::kShares ? text(short_number(100 * value, 3), " %")
                                               : short_number(value, digits);
  }

  std::string axes() const {
    std::string out;
    for (const double tick : values_.ticks) {
      const std::string height = fixed(y(tick));
      out += text("<path class=\"grid\" d=\"M", kLeft, " ", height, "H", kWidth - kRight, "\"/><text x=\"",
                  kLeft - 7, "\" y=\"", height, "\" dy=\".35em\" text-anchor=\"end\">",
                  value_text(tick, values_.digits), "</text>");
    }
    for (const double tick : steps_.ticks) {
      out += text("<text x=\"", fixed(x(tick)), "\" y=\"", kHeight - kBottom + 16,
                  "\" text-anchor=\"middle\">", short_number(tick, steps_.digits), "</text>");
    }
    return out + text("<path class=\"axis\" d=\"M", kLeft, " ", kHeight - kBottom, "H", kWidth - kRight,
                      "\"/><text x=\"", kWidth - kRight, "\" y=\"", kHeight - 6, "\" text-anchor=\"end\">",
                      escape_html(chart_.axis), "</text>");
  }

  std::string lines() const {
    std::string out;
    for (const Series& series : chart_.series) {
      std::string way;
      for (const Point& point : series.points)
        way += text(way.empty() ? "M" : "L", at(point.step, point.value));
      out += text("<path class=\"line s", series.colour, series.style == LineStyle::kFaint ? " faint" : "",
                  "\" d=\"", way, "\"/>");
    }
    return out;
  }

  std::string areas() const {
    std::vector<double> below(chart_.series.front().points.size(), 0.0);
    std::string out;
    for (const Series& series : chart_.series) {
      std::string upper, lower;
      for (std::size_t i = 0; i < std::min(below.size(), series.points.size()); ++i) {
        const Point& point = series.points[i];
        lower = text("L", at(point.step, below[i]), lower);
        below[i] = std::clamp(below[i] + point.value, 0.0, 1.0);
        upper += text(upper.empty() ? "M" : "L", at(point.step, below[i]));
      }
      out += text("<path class=\"area s", series.colour, "\" d=\"", upper, lower, "Z\"/>");
    }
    return out;
  }

  std::string dots() const {
    std::string out;
    for (const Series& series : chart_.series) {
      const bool has_dots = series.style == LineStyle::kDots || series.points.size() == 1;
      if (!has_dots || series.points.size() > kMaxStrips) continue;
      for (const Point& point : series.points) {
        out += text("<circle class=\"dot s", series.colour, "\" cx=\"", fixed(x(point.step)), "\" cy=\"",
                    fixed(y(point.value)), "\" r=\"4\"><title>", escape_html(chart_.axis), " ",
                    short_number(point.step, 9), "\n", escape_html(series.name), " ", value_text(point.value),
                    "</title></circle>");
      }
    }
    return out;
  }

  /// Vertical strips, invisible until the mouse is on one. They show the values of the lines there.
  std::string strips() const {
    const auto longest =
        std::max_element(chart_.series.begin(), chart_.series.end(),
                         [](const Series& a, const Series& b) { return a.points.size() < b.points.size(); });
    const Curve places = averaged(longest->points, kMaxStrips);
    const double width = (kWidth - kLeft - kRight) / static_cast<double>(places.size());
    std::string out;
    for (const Point& place : places) {
      const std::string words = words_at(place.step);
      if (words.empty()) continue;
      out += text("<rect class=\"strip\" x=\"", fixed(x(place.step) - width / 2), "\" y=\"", kTop,
                  "\" width=\"", fixed(width), "\" height=\"", kHeight - kTop - kBottom, "\"><title>", words,
                  "</title></rect>");
    }
    return out;
  }

  std::string words_at(double step) const {
    std::string words;
    for (const Series& series : chart_.series) {
      if (series.style == LineStyle::kDots || series.points.empty()) continue;
      auto near = std::lower_bound(series.points.begin(), series.points.end(), step,
                                   [](const Point& point, double s) { return point.step < s; });
      if (near == series.points.end()) --near;
      if (words.empty()) words = text(escape_html(chart_.axis), " ", short_number(near->step, 9));
      words += text("\n", escape_html(series.name), " ", value_text(near->value));
    }
    return words;
  }

  Chart chart_;
  Axis steps_, values_;
};

std::string legend_of(const Chart& chart) {
  std::string out;
  for (const Series& series : chart.series) {
    out += text("<span><i class=\"s", series.colour, series.style == LineStyle::kFaint ? " faint" : "",
                "\"></i>", escape_html(series.name), "</span>");
  }
  return text("<div class=\"legend\">", out, "</div>");
}

}  // namespace

std::string figure_of(const Chart& chart) {
  Chart drawn = chart;
  std::erase_if(drawn.series, [](const Series& series) { return series.points.empty(); });
  if (drawn.series.empty()) return {};
  std::string out = text("<figure><figcaption>", escape_html(drawn.title));
  if (!drawn.unit.empty()) out += text(" <small>", escape_html(drawn.unit), "</small>");
  out += "</figcaption>";
  if (drawn.series.size() > 1) out += legend_of(drawn);
  return text(out, Drawing(drawn).svg(), "</figure>\n");
}

}  // namespace trireme::telemetry
