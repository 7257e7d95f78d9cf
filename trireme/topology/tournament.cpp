#include "trireme/topology/tournament.h"

#include <algorithm>

namespace trireme::topology {
namespace {

/// Pairs of 0 .. n-1 by the circle method: one place is fixed, the others rotate by one each round. With an
/// odd number, the partner of the empty place is idle.
std::vector<Round> circle(int n) {
  if (n < 2) return {};
  const int places = n + n % 2;
  std::vector<Round> rounds;
  for (int round = 0; round + 1 < places; ++round) {
    Round pairs;
    for (int i = 0; i < places / 2; ++i) {
      const int one = i == 0 ? places - 1 : (round + i) % (places - 1);
      const int other = (round + places - 1 - i) % (places - 1);
      if (std::max(one, other) < n) pairs.push_back({std::min(one, other), std::max(one, other)});
    }
    rounds.push_back(pairs);
  }
  return rounds;
}

using Ranks = std::vector<int>;

/// Pairs all ranks of two hosts. Rank i of one is paired with each of the other, from rank i on, one per
/// round.
void add_meeting(const Ranks& one, const Ranks& other, std::vector<Round>& rounds) {
  const std::size_t turns = std::max(one.size(), other.size());
  if (rounds.size() < turns) rounds.resize(turns);
  for (std::size_t turn = 0; turn < turns; ++turn) {
    for (std::size_t i = 0; i < one.size(); ++i) {
      const std::size_t j = (i + turn) % turns;
      if (j < other.size()) rounds[turn].push_back({std::min(one[i], other[j]), std::max(one[i], other[j])});
    }
  }
}

}  // namespace

std::vector<Round> tournament(const std::vector<int>& host_of) {
  std::vector<Ranks> ranks_of;
  for (std::size_t rank = 0; rank < host_of.size(); ++rank) {
    const auto host = static_cast<std::size_t>(host_of[rank]);
    if (ranks_of.size() <= host) ranks_of.resize(host + 1);
    ranks_of[host].push_back(static_cast<int>(rank));
  }
  std::vector<Round> all;
  for (const Round& hosts : circle(static_cast<int>(ranks_of.size()))) {
    std::vector<Round> rounds;
    for (const Pair& pair : hosts)
      add_meeting(ranks_of[static_cast<std::size_t>(pair.a)], ranks_of[static_cast<std::size_t>(pair.b)],
                  rounds);
    all.insert(all.end(), rounds.begin(), rounds.end());
  }
  std::vector<Round> inside;
  for (const Ranks& ranks : ranks_of) {
    const auto rounds = circle(static_cast<int>(ranks.size()));
    if (inside.size() < rounds.size()) inside.resize(rounds.size());
    for (std::size_t i = 0; i < rounds.size(); ++i) {
      for (const Pair& pair : rounds[i])
        inside[i].push_back(
            {ranks[static_cast<std::size_t>(pair.a)], ranks[static_cast<std::size_t>(pair.b)]});
    }
  }
  all.insert(all.end(), inside.begin(), inside.end());
  return all;
}

}  // namespace trireme::topology
