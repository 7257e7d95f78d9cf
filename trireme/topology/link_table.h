#pragma once
// Measurements of links between the ranks of a world. A value.

#include <string>
#include <vector>

#include "trireme/topology/all_reduce_cost.h"

namespace trireme::topology {

struct Link {
  double alpha_s = 0;      ///< of a small message, one way
  double bytes_per_s = 0;  ///< of large ones
};

struct LinkTable {
  std::vector<int> host_of;              ///< by rank, numbered from 0 in order of the first rank
  std::vector<std::vector<Link>> links;  ///< [from][to]; the diagonal is empty

  int num_ranks() const { return static_cast<int>(host_of.size()); }
  int num_hosts() const;
  /// From rank to rank; the link of a rank with itself is empty.
  const Link& link(int from, int to) const {
    return links[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
  }
};

/// From equal texts, equal numbers.
std::vector<int> number_hosts(const std::vector<std::string>& host_ids);

/// The median of its pairs of ranks: alpha and bandwidth each by itself. `from` differs from `to`.
Link between_hosts(const LinkTable& table, int from, int to);

/// Members of an all-reduce over the network, and their cost of each message: hosts, or the ranks where there
/// is one host. A step waits for its slowest link, so these are the largest alpha and the least bandwidth.
struct Network {
  int members = 1;
  MessageCost cost = {};
};
/// Of one host: its ranks and the links between them. Of several: hosts and the links of between_hosts().
Network network_of(const LinkTable& table);

}  // namespace trireme::topology
