#include "trireme/topology/link_table.h"

#include <algorithm>

#include "trireme/base/median.h"

namespace trireme::topology {

int LinkTable::num_hosts() const { return host_of.empty() ? 0 : std::ranges::max(host_of) + 1; }

std::vector<int> number_hosts(const std::vector<std::string>& host_ids) {
  std::vector<std::string> known;
  std::vector<int> result;
  for (const std::string& id : host_ids) {
    const auto found = std::ranges::find(known, id);
    result.push_back(static_cast<int>(found - known.begin()));
    if (found == known.end()) known.push_back(id);
  }
  return result;
}

Link between_hosts(const LinkTable& table, int from, int to) {
  std::vector<double> alphas, bandwidths;
  for (int a = 0; a < table.num_ranks(); ++a) {
    for (int b = 0; b < table.num_ranks(); ++b) {
      if (table.host_of[static_cast<std::size_t>(a)] != from ||
          table.host_of[static_cast<std::size_t>(b)] != to)
        continue;
      alphas.push_back(table.link(a, b).alpha_s);
      bandwidths.push_back(table.link(a, b).bytes_per_s);
    }
  }
  return {median(alphas), median(bandwidths)};
}

Network network_of(const LinkTable& table) {
  const bool by_rank = table.num_hosts() == 1;
  Network network{.members = by_rank ? table.num_ranks() : table.num_hosts()};
  for (int from = 0; from < network.members; ++from) {
    for (int to = 0; to < network.members; ++to) {
      if (from == to) continue;
      const Link link = by_rank ? table.link(from, to) : between_hosts(table, from, to);
      network.cost.alpha_s = std::max(network.cost.alpha_s, link.alpha_s);
      network.cost.beta_s_per_byte = std::max(network.cost.beta_s_per_byte, 1 / link.bytes_per_s);
    }
  }
  return network;
}

}  // namespace trireme::topology
