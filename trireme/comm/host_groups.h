#pragma once
// The ranks of a group, host by host: the group of those that share a host, and groups across the hosts. They
// and their parent group fail together, with the first cause of either. Made by one thread, the one that
// issues the group's operations.

#include <optional>
#include <vector>

#include "trireme/comm/group.h"

namespace trireme::comm {

/// Hosts are numbered in the order of their first ranks.
struct HostGroups {
  int host = 0;       ///< this rank's
  int num_hosts = 1;  ///< that ranks of the group are on
  int lanes = 1;  ///< ranks that every host has: each, the first ones, has a counterpart on each other host
  std::optional<Group> inside;   ///< the ranks of this host, in order; none where it has one
  std::optional<Group> between;  ///< the ranks at this rank's place on each host, in order; none after lanes
  std::vector<std::vector<int>> ranks;  ///< of the group, by host, in the order of their places
};

/// How many hosts the ranks of a group are on. Not collective.
int num_hosts(const Group& group);

/// Collective over the group, at the cost of making two groups. Throws CommError.
HostGroups make_host_groups(const Group& group);

}  // namespace trireme::comm
