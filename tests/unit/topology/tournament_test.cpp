#include "trireme/topology/tournament.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace trireme::topology {
namespace {

std::vector<int> even(int hosts, int ranks) {
  std::vector<int> host_of;
  for (int host = 0; host < hosts; ++host)
    host_of.insert(host_of.end(), static_cast<std::size_t>(ranks), host);
  return host_of;
}

/// All kinds of worlds: one host, one rank per host, even, uneven, interleaved numbers.
std::vector<std::vector<int>> worlds() {
  std::vector<std::vector<int>> all = {{}, {0}, {0, 1, 0, 1, 0}, {0, 0, 0, 1, 2, 2}, {0, 1, 1, 1, 1, 1, 2}};
  for (int n = 1; n <= 17; ++n) {
    all.push_back(even(1, n));
    all.push_back(even(n, 1));
  }
  for (int hosts = 2; hosts <= 5; ++hosts) all.push_back(even(hosts, 4));
  return all;
}

TEST(Tournament, EveryPairMeetsOnce) {
  for (const auto& host_of : worlds()) {
    std::map<std::pair<int, int>, int> met;
    for (const Round& round : tournament(host_of)) {
      for (const Pair& pair : round) {
        EXPECT_LT(pair.a, pair.b);
        ++met[{pair.a, pair.b}];
      }
    }
    const std::size_t n = host_of.size();
    EXPECT_EQ(met.size(), n < 2 ? 0 : n * (n - 1) / 2);
    for (const auto& [pair, times] : met) EXPECT_EQ(times, 1) << pair.first << " and " << pair.second;
  }
}

TEST(Tournament, NobodyHasTwoPartnersInARound) {
  for (const auto& host_of : worlds()) {
    for (const Round& round : tournament(host_of)) {
      std::set<int> busy;
      for (const Pair& pair : round) {
        EXPECT_TRUE(busy.insert(pair.a).second) << pair.a;
        EXPECT_TRUE(busy.insert(pair.b).second) << pair.b;
      }
    }
  }
}

TEST(Tournament, HostIsPairedWithOneAtOnce) {
  for (const auto& host_of : worlds()) {
    for (const Round& round : tournament(host_of)) {
      std::map<int, std::set<int>> met;
      for (const Pair& pair : round) {
        const int a = host_of[static_cast<std::size_t>(pair.a)];
        const int b = host_of[static_cast<std::size_t>(pair.b)];
        met[a].insert(b);
        met[b].insert(a);
      }
      for (const auto& [host, others] : met) EXPECT_EQ(others.size(), 1u) << "host " << host;
    }
  }
}

TEST(Tournament, TakesNoMoreRoundsThanItMust) {
  EXPECT_EQ(tournament(even(1, 16)).size(), 15u);
  EXPECT_EQ(tournament(even(4, 4)).size(), 3u * 4 + 3);
  EXPECT_EQ(tournament(even(16, 1)).size(), 15u);
}

}  // namespace
}  // namespace trireme::topology
