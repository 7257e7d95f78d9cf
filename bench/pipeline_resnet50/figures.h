#pragma once
// Two figures as SVG elements, with error bars from the smallest to the largest value. Pure functions.

#include <string>
#include <vector>

#include "bench/pipeline_resnet50/sweep.h"

namespace trireme::bench {

struct Bar {
  std::string label;  ///< lines are parted by '|'
  Spread value;
};

/// Bars from 0, their medians above them.
std::string bar_figure(const std::vector<Bar>& bars, const std::string& unit);

struct Point {
  double x = 0;
  Spread measured;
  double ideal = 0;
};

/// A level to compare with.
struct Reference {
  std::string label;
  double value = 0;
};

/// Measured values with error bars and, as a dashed line, ideal ones over a logarithmic x axis; the reference
/// is a level line.
std::string line_figure(const std::vector<Point>& points, const Reference& reference,
                        const std::string& x_title, const std::string& unit);

}  // namespace trireme::bench
