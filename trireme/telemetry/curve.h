#pragma once
// A measured quantity over the steps of a run, and its reduction to the size of a picture. Pure functions.

#include <cstddef>
#include <vector>

namespace trireme::telemetry {

struct Point {
  double step = 0;
  double value = 0;
};

/// In the order of the steps.
using Curve = std::vector<Point>;

/// At most `most` (at least 4) of the points: the first, the last, and the least and the greatest of each of
/// many equal spans, so that no spike is lost.
Curve thinned(const Curve& curve, std::size_t most);

/// The means of at most `most` spans of about as many points each, at the means of their steps.
Curve averaged(const Curve& curve, std::size_t most);

/// Each value replaced by the mean of the `window` points around it; fewer at both ends.
Curve smoothed(const Curve& curve, std::size_t window);

}  // namespace trireme::telemetry
