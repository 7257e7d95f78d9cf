#include "trireme/topology/link_table.h"

#include <gtest/gtest.h>

namespace trireme::topology {
namespace {

LinkTable table_of(std::vector<int> host_of) {
  const std::size_t n = host_of.size();
  return {.host_of = std::move(host_of), .links = {n, std::vector<Link>(n, {1e-6, 1e9})}};
}

TEST(LinkTable, NumbersHostsByTheirFirstRank) {
  EXPECT_EQ(number_hosts({"z", "a", "z", "m"}), (std::vector<int>{0, 1, 0, 2}));
}

TEST(LinkTable, HostsHaveMedianOfTheirRanks) {
  LinkTable table = table_of({0, 0, 0, 1});
  table.links[0][3] = {3e-3, 5e6};
  table.links[1][3] = {1e-3, 7e6};
  table.links[2][3] = {2e-3, 900e6};
  const Link link = between_hosts(table, 0, 1);
  EXPECT_EQ(link.alpha_s, 2e-3);
  EXPECT_EQ(link.bytes_per_s, 7e6);
}

TEST(LinkTable, NetworkIsAsSlowAsSlowestLink) {
  LinkTable table = table_of({0, 1, 2});
  table.links[2][0] = {1e-6, 1e6};   // slow in one direction
  table.links[1][2] = {20e-3, 1e9};  // with a large latency
  const Network network = network_of(table);
  EXPECT_EQ(network.members, 3);
  EXPECT_EQ(network.cost.alpha_s, 20e-3);
  EXPECT_EQ(network.cost.beta_s_per_byte, 1e-6);
}

TEST(LinkTable, MembersAreRanksLocallyHostsOtherwise) {
  EXPECT_EQ(network_of(table_of({0, 0, 0})).members, 3);
  EXPECT_EQ(network_of(table_of({0, 0, 1})).members, 2);
  EXPECT_EQ(network_of(table_of({0})).members, 1);
}

TEST(LinkTable, InsideLinksDoNotCountBetweenHosts) {
  LinkTable table = table_of({0, 0, 1});
  table.links[0][1] = table.links[1][0] = {9, 1};
  EXPECT_EQ(network_of(table).cost.alpha_s, 1e-6);
}

}  // namespace
}  // namespace trireme::topology
