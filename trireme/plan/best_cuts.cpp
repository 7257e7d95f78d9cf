#include <algorithm>
#include <limits>
#include <utility>

#include "trireme/plan/internal/partitioning.h"

namespace trireme::plan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The best way to a cut with a given number of stages.
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

std::vector<std::size_t> best_cuts(const Profile& profile, std::size_t num_stages, const StageCost& cost) {
  const std::size_t last = profile.last_cut();
  std::vector<std::vector<Way>> ways(num_stages + 1, std::vector<Way>(last + 1));
  ways[0][0] = {.worst = 0, .squares = 0, .previous_cut = 0};
  for (std::size_t stage = 0; stage < num_stages; ++stage) {
    for (std::size_t to = 1; to <= last; ++to) {
      for (std::size_t from = 0; from < to; ++from) {
        const Way& before = ways[stage][from];
        if (before.worst == kInfinity || !profile.is_before(from, to)) continue;
        const Way way = extend(before, cost(stage, from, to), from);
        if (way < ways[stage + 1][to]) ways[stage + 1][to] = way;
      }
    }
  }
  std::vector<std::size_t> cuts(num_stages, last);
  if (ways[num_stages][last].worst == kInfinity) return {};
  for (std::size_t stage = num_stages; stage > 1; --stage)
    cuts[stage - 2] = ways[stage][cuts[stage - 1]].previous_cut;
  return cuts;
}

}  // namespace trireme::plan
