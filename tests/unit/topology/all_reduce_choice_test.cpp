// The choice of the all-reduce by measured costs.

#include "trireme/topology/all_reduce_choice.h"

#include <gmock/gmock.h>

#include <fstream>

#include "tests/unit/topology/exchange_ranks.h"

namespace trireme::topology {
namespace {

using Comparison = AllReduceChoice::Comparison;

// 10 ms, 1 Gbit/s.
constexpr MessageCost kLong{.alpha_s = 0.01, .beta_s_per_byte = 8e-9};

TEST(AllReduceChoice, FollowsFormulasWithoutOtherMeasurements) {
  const AllReduceChoice choice{.ranks = 4, .cost = kLong};
  EXPECT_EQ(choice.of(1000), Algorithm::kDirect);
  EXPECT_EQ(choice.of(25e6), Algorithm::kTwoShot);
  EXPECT_EQ((AllReduceChoice{.ranks = 2, .cost = {.alpha_s = 0, .beta_s_per_byte = 1e-9}}.of(1e9)),
            Algorithm::kRing);
}

TEST(AllReduceChoice, PrefersOtherLibraryNearFasterSizes) {
  const AllReduceChoice choice{
      .ranks = 4,
      .cost = kLong,
      .comparisons = {{1e3, {{Algorithm::kDirect, 0.01}}, 0.02}, {1e6, {{Algorithm::kRing, 0.1}}, 0.09}}};
  EXPECT_EQ(choice.of(0), Algorithm::kDirect);
  EXPECT_EQ(choice.of(30e3), Algorithm::kDirect);
  EXPECT_EQ(choice.of(33e3), std::nullopt);
  EXPECT_EQ(choice.of(1e9), std::nullopt);
}

TEST(AllReduceChoice, InaccurateFormulaLosesToAccurateOne) {
  AllReduceChoice choice{.ranks = 4, .cost = kLong};
  const auto measured = [&](Algorithm algorithm, double factor) {
    return Estimate{algorithm, factor * all_reduce_s(algorithm, 4, 0.5e6, kLong)};
  };
  ASSERT_EQ(choice.of(0.5e6), Algorithm::kDirect);
  choice.comparisons = {{0.5e6, {measured(Algorithm::kDirect, 4), measured(Algorithm::kRing, 1)}}};
  EXPECT_EQ(choice.of(0.5e6), Algorithm::kRing);
  // Far below, four latencies of one algorithm are still less than six of the other.
  EXPECT_EQ(choice.of(1), Algorithm::kDirect);
}

TEST(AllReduceChoice, ForcedAlgorithmPrecedesMeasurements) {
  const AllReduceChoice choice{.ranks = 4,
                               .cost = kLong,
                               .comparisons = {{1e3, {{Algorithm::kDirect, 0.01}}, 0.001}},
                               .forced = Algorithm::kTree};
  EXPECT_EQ(choice.of(1000), Algorithm::kTree);
}

TEST(AllReduceChoice, RoundTripsThroughTextForEverySize) {
  const AllReduceChoice measured{
      .ranks = 3,
      .cost = {1.0 / 3, 1e-9 / 7, 0},
      .comparisons = {{1024, {{Algorithm::kDirect, 0.1}, {Algorithm::kTree, 1e-17 / 3}}, {}},
                      {4e6, {{Algorithm::kRing, 0.5}}, 0.25}}};
  const AllReduceChoice forced{.ranks = 5, .forced = Algorithm::kHalvingDoubling};
  for (const AllReduceChoice& each : {measured, forced, AllReduceChoice{.ranks = 2, .cost = kLong}}) {
    const AllReduceChoice back = all_reduce_choice_from(to_text(each));
    EXPECT_EQ(to_text(back), to_text(each));
    for (double bytes = 1; bytes < 1e10; bytes *= 1.5) EXPECT_EQ(back.of(bytes), each.of(bytes)) << bytes;
  }
  EXPECT_EQ(to_text(forced), "5 forced halving_doubling");
  AllReduceChoice by_four = measured;
  by_four.lanes = 4;
  EXPECT_EQ(all_reduce_choice_from(to_text(by_four)).lanes, 4);
  EXPECT_EQ(all_reduce_choice_from(to_text(measured)).lanes, 1) << "as before there were several";
}

TEST(AllReduceChoice, RejectsInvalidTextWithExpectedForm) {
  for (const char* wrong : {"",
                            "3",
                            "3 measured",
                            "0 measured 1 1 1",
                            "3 measured 1 1 -1",
                            "3 measured 1 1 nan",
                            "3 forced rung",
                            "3 measured 1 1 0;",
                            "3 measured 1 1 0; 1024",
                            "3 measured 1 1 0; 0 ring:1",
                            "3 measured 1 1 0; 1 ring",
                            "3 measured 1 1 0; 1 ring:x",
                            "3 measured 1 1 0; 1 rung:1",
                            "3 measured 1 1 0 more",
                            "3 measured 1 1 0 lanes",
                            "3 measured 1 1 0 lanes 0",
                            "3 measured 1 1 0 lanes 1",
                            "3 measured 1 1 0 lanes 65",
                            "3 measured 1 1 0 lanes 4 5",
                            "3  measured 1 1 0",
                            "three measured 1 1 0"}) {
    EXPECT_THROW(all_reduce_choice_from(wrong), InvalidArgument) << wrong;
  }
  std::string long_one = "3 measured 1 1 0";
  for (int i = 0; i < 100000; ++i) long_one += "; 1 ring:1";
  EXPECT_THROW(all_reduce_choice_from(long_one), InvalidArgument);
}

TEST(AllReduceChoice, IsDescribedByItsChangePoints) {
  const AllReduceChoice choice{
      .ranks = 4,
      .cost = kLong,
      .comparisons = {{1e3, {{Algorithm::kDirect, 0.01}}, 0.02}, {1e6, {{Algorithm::kRing, 0.1}}, 0.09}}};
  EXPECT_EQ(describe(choice, "gloo"), "direct below 32.0 KiB, gloo above");
  EXPECT_EQ(describe({.ranks = 4, .forced = Algorithm::kTree}, "gloo"), "tree");
  EXPECT_EQ(describe({.ranks = 2, .cost = {.alpha_s = 0, .beta_s_per_byte = 1e-9}, .lanes = 4}, "gloo"),
            "ring; 4 connections between any two");
}

TEST(AllReduceChoice, RanksMeasureEquallyAndPreferInstantLibrary) {
  std::vector<AllReduceChoice> choices(3);
  const auto errors = test::on_exchange_ranks(3, [&](test::ExchangeRank me) {
    choices[static_cast<std::size_t>(me.rank)] = measure_choice(
        me.exchange, [](std::span<float>) {}, {}, Deadline::after_s(60));
  });
  EXPECT_THAT(errors, testing::Each(""));
  for (const auto& choice : choices) {
    EXPECT_EQ(choice.ranks, 3);
    EXPECT_EQ(choice.cost.alpha_s, choices[0].cost.alpha_s);
    EXPECT_EQ(choice.cost.beta_s_per_byte, choices[0].cost.beta_s_per_byte);
    EXPECT_GT(choice.cost.alpha_s, 0);
    EXPECT_GT(choice.cost.beta_s_per_byte, 0);
    ASSERT_EQ(choice.comparisons.size(), choices[0].comparisons.size());
    for (std::size_t i = 0; i < choice.comparisons.size(); ++i) {
      EXPECT_EQ(choice.comparisons[i].other_s, choices[0].comparisons[i].other_s);
      EXPECT_EQ(choice.comparisons[i].lists[0].seconds, choices[0].comparisons[i].lists[0].seconds);
    }
    for (const double bytes : {4.0, 1e4, 1e8}) EXPECT_EQ(choice.of(bytes), std::nullopt);
  }
}

TEST(AllReduceChoice, HasAlgorithmForEverySizeWithoutLibrary) {
  const auto errors = test::on_exchange_ranks(2, [&](test::ExchangeRank me) {
    const auto choice = measure_choice(me.exchange, {}, {}, Deadline::after_s(60));
    for (const double bytes : {0.0, 4.0, 1e4, 1e8}) EXPECT_TRUE(choice.of(bytes));
  });
  EXPECT_THAT(errors, testing::Each(""));
}

TEST(AllReduceChoice, AlphaIsAtLeastLinkDelay) {
  const test::SwitchedHosts hosts(3, 0.01);
  if (!hosts.unavailable_because().empty()) GTEST_SKIP() << hosts.unavailable_because();
  const auto errors = test::on_exchange_ranks(3,
                                              [&](test::ExchangeRank me) {
                                                const auto choice = measure_choice(me.exchange, {}, {},
                                                                                   Deadline::after_s(60));
                                                EXPECT_GE(choice.cost.alpha_s, 0.01);
                                              },
                                              {.hosts = &hosts});
  EXPECT_THAT(errors, testing::Each(""));
}

/// Limits the bytes in flight of one connection, in the namespace of the thread.
void hold_windows_to(int bytes) {
  std::ofstream("/proc/sys/net/ipv4/tcp_wmem") << "4096 " << bytes << " " << bytes;
}

TEST(AllReduceChoice, UsesSeveralConnectionsOnLongLink) {
  const test::SwitchedHosts hosts(2, 0.01);
  if (!hosts.unavailable_because().empty()) GTEST_SKIP() << hosts.unavailable_because();
  // 64 KiB in 20 ms are 3 MB/s on a link without a rate limit.
  for (int host = 0; host < 2; ++host) hosts.on_host(host, [] { hold_windows_to(64 << 10); });
  const auto errors = test::on_exchange_ranks(2,
                                              [&](test::ExchangeRank me) {
                                                const auto choice = measure_choice(
                                                    me.exchange, {}, me.set_lanes, Deadline::after_s(60));
                                                EXPECT_EQ(choice.lanes, kManyLanes);
                                                EXPECT_EQ(me.exchange.num_lanes(), kManyLanes);
                                              },
                                              {.hosts = &hosts});
  EXPECT_THAT(errors, testing::Each(""));
}

}  // namespace
}  // namespace trireme::topology
