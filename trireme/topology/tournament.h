#pragma once
// Rounds of pairs for a measurement: in a round no rank has two partners, and after all rounds every pair has
// met once. First the hosts meet host by host, each with one other at a time and all its ranks at once. So a
// link between two hosts is shared by as many pairs each time as in a collective that goes place by place.
// Then the ranks of each host meet. Rounds of a set are those of the circle method. Pure.

#include <vector>

namespace trireme::topology {

struct Pair {
  int a = 0;  ///< the lower rank
  int b = 0;
  bool operator==(const Pair&) const = default;
};
/// Pairs that measure at the same time; no rank is in two of them.
using Round = std::vector<Pair>;

/// By rank: its host, numbered from 0 in order of the first rank.
std::vector<Round> tournament(const std::vector<int>& host_of);

}  // namespace trireme::topology
