#include "trireme/base/min_max_cuts.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace trireme {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The best cuts up to a place, with a given number of parts.
struct Way {
  double worst = kInfinity;
  double squares = kInfinity;
  std::size_t previous_cut = 0;

  bool operator<(const Way& other) const {
    return std::pair(worst, squares) < std::pair(other.worst, other.squares);
  }
};

Way extend(const Way& way, double cost, std::size_t cut) {
  return {.worst = std::max(way.worst, cost), .squares = way.squares + cost * cost, .previous_cut = cut};
}

}  // namespace

std::vector<std::size_t> min_max_cuts(std::size_t num_things, std::size_t num_parts, const CostOfPart& cost) {
  std::vector<std::vector<Way>> ways(num_parts + 1, std::vector<Way>(num_things + 1));
  ways[0][0] = {.worst = 0, .squares = 0, .previous_cut = 0};
  for (std::size_t part = 0; part < num_parts; ++part) {
    for (std::size_t to = 1; to <= num_things; ++to) {
      for (std::size_t from = 0; from < to; ++from) {
        const Way& before = ways[part][from];
        if (before.worst == kInfinity) continue;
        const Way way = extend(before, cost(part, from, to), from);
        if (way < ways[part + 1][to]) ways[part + 1][to] = way;
      }
    }
  }
  if (ways[num_parts][num_things].worst == kInfinity) return {};
  std::vector<std::size_t> cuts(num_parts, num_things);
  for (std::size_t part = num_parts; part > 1; --part)
    cuts[part - 2] = ways[part][cuts[part - 1]].previous_cut;
  return cuts;
}

std::vector<std::size_t> min_max_cuts(std::span<const double> costs, std::size_t num_parts) {
  std::vector<double> sums = {0};  // prefix sums
  for (const double cost : costs) sums.push_back(sums.back() + cost);
  return min_max_cuts(costs.size(), num_parts,
                      [&](std::size_t, std::size_t from, std::size_t to) { return sums[to] - sums[from]; });
}

}  // namespace trireme
