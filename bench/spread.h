#pragma once
// The median of some measurements, and the least and the most of them.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "trireme/base/median.h"

namespace trireme::bench {

/// Of at least one value.
inline nlohmann::json spread(const std::vector<double>& values) {
  return {{"median", median(values)}, {"min", std::ranges::min(values)}, {"max", std::ranges::max(values)}};
}

/// Pass by pass: what was measured in one pass is compared with what was measured in the same.
inline nlohmann::json ratio(const std::vector<double>& ours, const std::vector<double>& theirs) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < ours.size(); ++i) ratios.push_back(ours[i] / theirs[i]);
  return spread(ratios);
}

}  // namespace trireme::bench
