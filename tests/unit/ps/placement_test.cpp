// Where partitions go, for every placement of the table and clusters of 1 to 64 servers.

#include "trireme/ps/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

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
  double all = 0, between_survivors = 0;  ///< parts of all partitions
};

/// Of the primaries; `changed` is the server that came or went.
Moves moves(const Placement& before, const Placement& after, ServerId changed) {
  Moves result;
  for (std::size_t p = 0; p < before.size(); ++p) {
    if (before[p][0] == after[p][0]) continue;
    result.all += 1.0 / static_cast<double>(before.size());
    if (before[p][0] != changed && after[p][0] != changed)
      result.between_survivors += 1.0 / static_cast<double>(before.size());
  }
  return result;
}

class PlacementOf : public testing::TestWithParam<std::string> {
 protected:
  Placement place(const std::vector<Candidate>& candidates,
                  const PlacementOptions& options = kOptions) const {
    return placement_function(GetParam())(candidates, options);
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
    for (const auto& chain : place(candidates)) {
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
}

TEST_P(PlacementOf, MovesOnlyTheShareOfWhoComes) {
  for (int n = 1; n < 64; ++n) {
    const auto moved = moves(place(servers(n)), place(servers(n + 1)), static_cast<ServerId>(n + 1));
    // Its share, a tenth of it, and what the bounds move on.
    EXPECT_LE(moved.all, 1.1 / (n + 1) + kOptions.epsilon) << "from " << n << " servers to one more";
    EXPECT_LE(moved.between_survivors, kOptions.epsilon) << "from " << n << " servers to one more";
  }
}

TEST_P(PlacementOf, MovesOnlyTheShareOfWhoGoes) {
  for (int n = 2; n <= 64; ++n) {
    const int gone = n / 2;
    const Placement before = place(servers(n));
    const double share = loads(before, 0)[static_cast<ServerId>(gone + 1)] / 4096.0;
    const auto moved = moves(before, place(servers(n, gone)), static_cast<ServerId>(gone + 1));
    EXPECT_LE(moved.all, share + kOptions.epsilon) << "from " << n << " servers to one less";
    EXPECT_LE(moved.between_survivors, kOptions.epsilon) << "from " << n << " servers to one less";
  }
}

TEST(BoundedRendezvous, GivesNobodyMoreThanItsBound) {
  const PlacementFunction place = placement_function("bounded-rendezvous");
  for (int n = 1; n <= 64; ++n) {
    const Placement placement = place(servers(n), kOptions);
    for (std::size_t rank = 0; rank < std::min<std::size_t>(2, static_cast<std::size_t>(n)); ++rank) {
      const double share = 4096.0 / n;
      for (const auto& [server, load] : loads(placement, rank))
        EXPECT_LE(load, share * (1 + kOptions.epsilon) + 1 + (n == 2 ? share : 0))
            << n << " servers, rank " << rank;
    }
  }
}

TEST(BoundedRendezvous, FollowsWeights) {
  std::vector<Candidate> candidates = servers(4);
  candidates[0].weight = 3;
  const auto load = loads(placement_function("bounded-rendezvous")(candidates, kOptions), 0);
  EXPECT_NEAR(load.at(1), 4096 / 2.0, 4096 * 0.06);
  EXPECT_NEAR(load.at(2), 4096 / 6.0, 4096 * 0.06);
}

TEST(PlacementTable, RefusesAnUnknownName) { EXPECT_THROW(placement_function("modulo"), std::exception); }

TEST(PartitionOf, IsTheSameForEver) {
  // Written down: a cluster that is restarted by a later version has to find its keys.
  EXPECT_EQ(partition_of(1, 0, 4096), partition_of(1, 0, 8192) & 4095);
  std::set<PartitionId> seen;
  for (std::uint64_t key = 0; key < 100000; ++key) seen.insert(partition_of(1, key, 4096));
  EXPECT_EQ(seen.size(), 4096U);
}

}  // namespace
}  // namespace trireme::ps
