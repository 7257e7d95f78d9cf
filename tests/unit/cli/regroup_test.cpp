#include "cli/launch/regroup.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>

namespace trireme::cli {
namespace {

wire::ElasticMember member(int number) { return {.id = std::to_string(number), .node = 0}; }

std::vector<wire::ElasticMember> members(const std::vector<int>& numbers) {
  std::vector<wire::ElasticMember> all;
  for (const int number : numbers) all.push_back(member(number));
  return all;
}

std::vector<LivingMember> living(const std::vector<int>& numbers, const std::vector<int>& sizes = {}) {
  std::vector<LivingMember> all;
  for (const int number : numbers) all.push_back({.member = member(number), .sizes = sizes});
  return all;
}

std::vector<std::string> ids(const std::optional<wire::ElasticWorld>& world) {
  std::vector<std::string> all;
  if (world)
    for (const auto& each : world->ranks) all.push_back(each.id);
  return all;
}

RegroupRequest request(int min_ranks) {
  return {.before = {.generation = 4, .ranks = members({10, 11, 12, 13})},
          .living = living({10, 12, 13}),
          .spares = {},
          .wanted_ranks = 4,
          .min_ranks = min_ranks};
}

using testing::ElementsAre;

TEST(Regroup, SparesReplaceLostRanks) {
  RegroupRequest lost = request(1);
  lost.spares = members({20, 21});
  const auto next = regroup(lost);
  EXPECT_THAT(ids(next), ElementsAre("10", "20", "12", "13"));
  EXPECT_EQ(next->generation, 5);
}

TEST(Regroup, SmallerWorldsKeepOrderOfSurvivors) {
  EXPECT_THAT(ids(regroup(request(2))), ElementsAre("10", "12", "13"));
}

TEST(Regroup, WorldsHaveSizesThatProgramSupports) {
  RegroupRequest lost = request(1);
  lost.living = living({10, 12, 13}, {1, 2, 4});
  EXPECT_THAT(ids(regroup(lost)), ElementsAre("10", "12"));
  lost.living[1].sizes = {1, 4};
  EXPECT_THAT(ids(regroup(lost)), ElementsAre("10"));
}

TEST(Regroup, FewerThanTheLeastAreNoWorld) {
  EXPECT_EQ(regroup(request(4)), std::nullopt);
  RegroupRequest lost = request(2);
  lost.living = living({10, 12, 13}, {4});
  EXPECT_EQ(regroup(lost), std::nullopt);
}

TEST(Regroup, WorldsGrowToWantedSizeWithSpares) {
  RegroupRequest lost = request(1);
  lost.before.ranks = members({10, 12});
  lost.living = living({10, 12});
  lost.spares = members({20, 21, 22});
  EXPECT_THAT(ids(regroup(lost)), ElementsAre("10", "12", "20", "21"));
}

/// For any survivors, and any world size that the program supports.
TEST(Regroup, EveryWorldHasEachSurvivorOnce) {
  std::mt19937 random(1);
  const auto draw = [&](int least, int most) { return std::uniform_int_distribution(least, most)(random); };
  for (int round = 0; round < 10000; ++round) {
    const int before = draw(1, 8), num_spares = draw(0, 3);
    RegroupRequest lost{
        .before = {.generation = round}, .living = {}, .spares = {}, .wanted_ranks = draw(1, 8)};
    lost.min_ranks = draw(1, lost.wanted_ranks);
    std::vector<int> sizes;
    for (int size = 1; size <= 8; ++size)
      if (draw(0, 2) > 0) sizes.push_back(size);
    for (int rank = 0; rank < before; ++rank) {
      lost.before.ranks.push_back(member(rank));
      if (draw(0, 3) > 0) lost.living.push_back({.member = member(rank), .sizes = sizes});
    }
    for (int spare = 0; spare < num_spares; ++spare) lost.spares.push_back(member(100 + spare));
    const auto next = regroup(lost);
    std::vector<wire::ElasticMember> there = lost.spares;
    for (const auto& each : lost.living) there.push_back(each.member);
    int best = 0;
    for (int size = lost.min_ranks; size <= std::min<int>(lost.wanted_ranks, std::ssize(there)); ++size) {
      if (sizes.empty() || lost.living.empty() || std::ranges::count(sizes, size) > 0) best = size;
    }
    ASSERT_EQ(next ? next->size() : 0, best) << round;
    if (!next) continue;
    for (const auto& each : next->ranks) {
      ASSERT_EQ(std::ranges::count(next->ranks, each), 1) << round;
      ASSERT_EQ(std::ranges::count(there, each), 1) << round;
    }
  }
}

}  // namespace
}  // namespace trireme::cli
