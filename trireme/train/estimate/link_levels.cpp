#include "trireme/train/estimate/link_levels.h"

#include <algorithm>
#include <cmath>

namespace trireme::train {
namespace {

/// Each of `ranks` sends its share of the bytes to all others, in rounds of doubling distance.
double level_s(const LinkFacts& link, double ranks, double bytes) {
  if (ranks <= 1) return 0;
  return link.latency_s * std::ceil(std::log2(ranks)) + bytes * (1 - 1 / ranks) / link.bytes_per_s;
}

}  // namespace

double gather_s(const LinkLevels& links, const GroupOfRanks& group, double bytes) {
  const int distance = std::max(1, group.span / group.ranks);
  const int on_host = std::clamp(links.ranks_of_host / distance, 1, group.ranks);
  const double hosts = std::ceil(static_cast<double>(group.ranks) / on_host);
  return level_s(links.between, hosts, bytes / on_host) + level_s(links.within, on_host, bytes);
}

double all_reduce_s(const LinkLevels& links, const GroupOfRanks& group, double bytes) {
  return 2 * gather_s(links, group, bytes);
}

}  // namespace trireme::train
