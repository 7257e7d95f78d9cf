#pragma once
// Which ranks of a group share a host. Ranks here are group ranks; hosts are numbered in order of their first
// rank. Pure.

#include <string>
#include <vector>

namespace trireme::comm {

struct HostLayout {
  int host = 0;                   ///< this rank's
  int place = 0;                  ///< of this rank among the ranks of its host
  bool even = true;               ///< every host has the same number of ranks
  std::vector<int> host_of;       ///< by rank
  std::vector<int> members;       ///< the ranks of this host
  std::vector<int> counterparts;  ///< by host: the rank at this rank's place; empty if some host has none
  std::vector<int> everybody;
  std::vector<std::vector<int>> ranks_of_host;

  /// The place of any rank on its host.
  int place_of(int rank) const;
};

HostLayout layout_of(const std::vector<std::string>& host_ids, int rank);

}  // namespace trireme::comm
