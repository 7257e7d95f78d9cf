#include "trireme/comm/internal/host_layout.h"

#include <algorithm>

namespace trireme::comm {

int HostLayout::place_of(int rank) const {
  const int host_of_rank = host_of[static_cast<std::size_t>(rank)];
  return static_cast<int>(std::count(host_of.begin(), host_of.begin() + rank, host_of_rank));
}

HostLayout layout_of(const std::vector<std::string>& host_ids, int rank) {
  HostLayout layout;
  std::vector<std::string> hosts;
  auto& ranks_of_host = layout.ranks_of_host;
  for (std::size_t i = 0; i < host_ids.size(); ++i) {
    const auto found = std::find(hosts.begin(), hosts.end(), host_ids[i]);
    const auto host = static_cast<std::size_t>(found - hosts.begin());
    if (found == hosts.end()) {
      hosts.push_back(host_ids[i]);
      ranks_of_host.emplace_back();
    }
    ranks_of_host[host].push_back(static_cast<int>(i));
    layout.host_of.push_back(static_cast<int>(host));
    layout.everybody.push_back(static_cast<int>(i));
  }
  layout.host = layout.host_of[static_cast<std::size_t>(rank)];
  layout.members = ranks_of_host[static_cast<std::size_t>(layout.host)];
  layout.place = layout.place_of(rank);
  const auto place = static_cast<std::size_t>(layout.place);
  for (const auto& ranks : ranks_of_host) {
    layout.even = layout.even && ranks.size() == ranks_of_host[0].size();
    if (place < ranks.size()) layout.counterparts.push_back(ranks[place]);
  }
  if (layout.counterparts.size() < ranks_of_host.size()) layout.counterparts.clear();
  return layout;
}

}  // namespace trireme::comm
