// The placement of partitions, for every placement function of the table and clusters of 1 to 64 servers.

#include "trireme/ps/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "trireme/base/random.h"

namespace trireme::ps {
namespace {

constexpr PlacementOptions kOptions = {.num_partitions = 4096, .num_replicas = 2, .epsilon = 0.05};

std::vector<Candidate> servers(int count, int skipped = -1) {
  std::vector<Candidate> result;
  for (int i = 0; i < count; ++i) {
    if (i == skipped) continue;
    const std::string name = "server" + std::to_string(i);
    result.push_back({static_cast<ServerId>(i + 1), name, "host" + std::to_string(i), 1});
  }
  return result;
}

/// Roles of rank `rank` (0: primaries) by server.
std::map<ServerId, int> loads(const Placement& placement, std::size_t rank) {
  std::map<ServerId, int> result;
  for (const auto& chain : placement) ++result[chain[rank]];
  return result;
}

struct Moves {
  int primaries = 0;          ///< that move to another server
  int copies = 0;             ///< that must be created
  int between_survivors = 0;  ///< copies that neither the new server gets nor the lost server had
  int were_its = 0;           ///< roles that the changed server had before
};

/// `changed` is the server that joined or left.
Moves moves(const Placement& before, const Placement& after, ServerId changed) {
  Moves result;
  for (std::size_t p = 0; p < before.size(); ++p) {
    const auto& had = before[p];
    const bool was_its = std::find(had.begin(), had.end(), changed) != had.end();
    result.were_its += was_its ? 1 : 0;
    result.primaries += had[0] != after[p][0] ? 1 : 0;
    for (const ServerId id : after[p]) {
      if (std::find(had.begin(), had.end(), id) != had.end()) continue;
      ++result.copies;
      result.between_survivors += id != changed && !was_its ? 1 : 0;
    }
  }
  return result;
}

class PlacementOf : public testing::TestWithParam<std::string> {
 protected:
  Placement place(const std::vector<Candidate>& candidates, const Placement& before = {}) const {
    return placement_function(GetParam())(candidates, kOptions, before);
  }
};
INSTANTIATE_TEST_SUITE_P(All, PlacementOf, testing::ValuesIn(placement_names()), [](const auto& row) {
  std::string name = row.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST_P(PlacementOf, PutsReplicasOnDifferentServersAndHosts) {
  for (const int n : {1, 2, 3, 7, 64}) {
    std::vector<Candidate> candidates = servers(n);
    for (std::size_t i = 0; i < candidates.size(); ++i) candidates[i].host = "host" + std::to_string(i / 2);
    std::map<ServerId, std::string> hosts;
    for (const Candidate& candidate : candidates) hosts[candidate.id] = candidate.host;
    const Placement placement = place(candidates);
    EXPECT_EQ(place(candidates, placement), placement) << "who is there stays, with " << n;
    for (const auto& chain : placement) {
      ASSERT_EQ(chain.size(), std::min<std::size_t>(2, candidates.size()));
      if (n < 2) continue;
      EXPECT_NE(chain[0], chain[1]);
      if (n > 2) {
        EXPECT_NE(hosts[chain[0]], hosts[chain[1]]);
      }
    }
  }
}

TEST_P(PlacementOf, DependsOnNamesAlone) {
  std::vector<Candidate> candidates = servers(5);
  const Placement first = place(candidates);
  std::reverse(candidates.begin(), candidates.end());
  EXPECT_EQ(place(candidates), first);
  EXPECT_EQ(place(candidates, first), first);
  std::vector<Candidate> more = servers(8);
  const Placement grown = place(more, first);
  std::reverse(more.begin(), more.end());
  EXPECT_EQ(place(more, first), grown);
}

constexpr int kMaxPlaced = 64;  // servers

/// No server has more than its share plus a twentieth, for any rank.
void expect_bounds(const Placement& placement, const std::vector<Candidate>& candidates) {
  double weight = 0;
  for (const Candidate& each : candidates) weight += each.weight;
  for (std::size_t rank = 0; rank < placement[0].size(); ++rank) {
    auto load = loads(placement, rank);
    for (const Candidate& each : candidates)
      EXPECT_LE(load[each.id], std::ceil(1.05 * 4096 * each.weight / weight))
          << candidates.size() << " servers, rank " << rank;
  }
}

/// The server that joins gets its share of primaries and of all roles, within a tenth. Other servers exchange
/// nothing.
void expect_share_moved(const Placement& before, const Placement& after, const Candidate& comes,
                        double share) {
  const Moves moved = moves(before, after, comes.id);
  const double replicas = before[0].size() == after[0].size() ? 2 : 1 + 1 / share;
  EXPECT_LE(moved.primaries, 1.1 * 4096 * share) << comes.name;
  EXPECT_LE(moved.copies, 1.1 * 4096 * share * replicas) << comes.name;
  EXPECT_GE(loads(after, 0)[comes.id], std::floor(0.9 * 4096 * share)) << comes.name;
}

TEST(BoundedRendezvous, MovesShareOfNewcomerWithinBound) {
  const PlacementFunction place = placement_function("bounded-rendezvous");
  Placement grown;  // joined by consecutive servers
  for (int n = 1; n <= kMaxPlaced; ++n) {
    const std::vector<Candidate> candidates = servers(n);
    const Placement fresh = place(candidates, kOptions, {}), more = place(candidates, kOptions, grown);
    expect_bounds(fresh, candidates);
    expect_bounds(more, candidates);
    EXPECT_EQ(place(candidates, kOptions, more), more) << "who is there stays, with " << n;
    if (n > 1) expect_share_moved(grown, more, candidates.back(), 1.0 / n);
    if (n < kMaxPlaced)
      expect_share_moved(fresh, place(servers(n + 1), kOptions, fresh), servers(n + 1).back(), 1.0 / (n + 1));
    grown = more;
  }
}

TEST(BoundedRendezvous, MovesOnlyPartitionsOfRemovedServer) {
  const PlacementFunction place = placement_function("bounded-rendezvous");
  for (int n = 3; n <= kMaxPlaced; ++n) {
    const int gone = n / 2;
    const Placement before = place(servers(n), kOptions, {});
    const Placement after = place(servers(n, gone), kOptions, before);
    const Moves moved = moves(before, after, static_cast<ServerId>(gone + 1));
    EXPECT_EQ(moved.copies, moved.were_its) << "from " << n << " servers to one less";
    EXPECT_EQ(moved.between_survivors, 0) << "from " << n << " servers to one less";
    expect_bounds(after, servers(n, gone));
  }
}

/// A changing cluster: servers of all weights join and leave, and the placement uses the current owners of
/// partitions.
TEST(BoundedRendezvous, KeepsBoundsAsServersJoinAndLeave) {
  const PlacementFunction place = placement_function("bounded-rendezvous");
  Random random(7);
  std::vector<Candidate> there = servers(6);
  ServerId next = 100;
  Placement now = place(there, kOptions, {});
  for (int change = 0; change < 200; ++change) {
    const Placement before = now;
    const bool comes = there.size() < 6 || (there.size() < 24 && random.below(2) == 0);
    if (comes) {
      const std::string name = "comes" + std::to_string(next);
      there.push_back({next++, name, name, 0.5 + random.uniform()});
    }
    const Candidate changed = comes ? there.back() : there[random.below(there.size())];
    if (!comes) std::erase_if(there, [&](const Candidate& each) { return each.id == changed.id; });
    now = place(there, kOptions, before);
    const Moves moved = moves(before, now, changed.id);
    double weight = 0;
    for (const Candidate& each : there) weight += each.weight;
    if (comes) {
      expect_share_moved(before, now, changed, changed.weight / weight);
    } else {
      EXPECT_EQ(moved.copies, moved.were_its) << "change " << change;
    }
    expect_bounds(now, there);
    ASSERT_FALSE(HasFailure()) << "at change " << change << ", with " << there.size() << " servers";
  }
}

/// A new point of a server moves keys to that server only. Its share depends on its random points.
TEST(HashRing, MovesOnlyToNewAndFromLost) {
  const PlacementFunction place = placement_function("hash-ring");
  for (int n = 2; n < kMaxPlaced; ++n) {
    const Placement without = place(servers(n), kOptions, {}), with = place(servers(n + 1), kOptions, {});
    const auto changed = static_cast<ServerId>(n + 1);
    EXPECT_EQ(moves(without, with, changed).between_survivors, 0) << n;
    EXPECT_EQ(moves(with, without, changed).between_survivors, 0) << n;
    EXPECT_LE(moves(without, with, changed).copies, 2 * 1.35 * 4096 / (n + 1)) << n;
  }
}

TEST(BoundedRendezvous, FollowsWeights) {
  std::vector<Candidate> candidates = servers(4);
  candidates[0].weight = 3;
  const auto load = loads(placement_function("bounded-rendezvous")(candidates, kOptions, {}), 0);
  EXPECT_NEAR(load.at(1), 4096 / 2.0, 4096 * 0.06);
  EXPECT_NEAR(load.at(2), 4096 / 6.0, 4096 * 0.06);
}

TEST(PlacementTable, RejectsAnUnknownName) { EXPECT_THROW(placement_function("modulo"), std::exception); }

TEST(PartitionOf, IsTheSameForEver) {
  // Fixed values: a cluster that a later version restarts must find its keys.
  EXPECT_EQ(partition_of(1, 0, 4096), partition_of(1, 0, 8192) & 4095);
  std::set<PartitionId> seen;
  for (std::uint64_t key = 0; key < 100000; ++key) seen.insert(partition_of(1, key, 4096));
  EXPECT_EQ(seen.size(), 4096U);
}

}  // namespace
}  // namespace trireme::ps
