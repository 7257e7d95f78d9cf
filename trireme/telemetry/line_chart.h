#pragma once
// A drawing of curves over the steps of a run as one SVG element: axes with ticks, a legend, and the values
// under the mouse as titles, without a script. Colours are the classes s0, s1, ... that the page around it
// defines (see report.cpp). Ticks are at 1, 2 or 5 times a power of ten. Pure.

#include <string>
#include <vector>

#include "trireme/telemetry/curve.h"

namespace trireme::telemetry {

enum class LineStyle {
  kLine,
  kFaint,  ///< drawn below the others: single measurements below their mean
  kDots,   ///< a line with a dot at each point, which shows its value
};

/// One curve, with its name in the legend and its colour.
struct Series {
  std::string name;
  Curve points;
  int colour = 0;
  LineStyle style = LineStyle::kLine;
};

/// How values become heights.
enum class ChartScale {
  kFitted,    ///< linear around the values; within 0 and 1 where all of them are, as accuracies
  kFromZero,  ///< linear from 0 on
  kAuto,      ///< kFitted, or logarithmic when the values span more than a factor of 200
  kShares,    ///< 0 to 100 %, the series piled on each other; all have the same steps
};

/// Content of a picture: curves over the steps of a run, or another whole number, in one unit.
struct Chart {
  std::string title;
  std::string unit;  ///< of the values; may be empty
  std::vector<Series> series;
  ChartScale scale = ChartScale::kFitted;
  std::string axis = "step";  ///< quantity of the x axis, in the singular
};

/// The chart as a <figure>; empty when no series has a point. Each curve is thinned to 1000 points. A series
/// of one point is a dot; of kShares it fills the width.
std::string figure_of(const Chart& chart);

}  // namespace trireme::telemetry
