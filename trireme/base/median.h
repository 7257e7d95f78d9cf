#pragma once
// The median of measurements.

#include <algorithm>
#include <cstddef>
#include <vector>

namespace trireme {

/// The middle value, of an even number the upper one. There has to be a value. Linear time.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace trireme
