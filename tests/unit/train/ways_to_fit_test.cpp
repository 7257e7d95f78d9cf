// Where no plan fits: the cheapest ways to make one fit.
#include "trireme/train/planner/ways_to_fit.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/unit/train/known_costs.h"
#include "trireme/train/estimate/process_memory.h"

namespace trireme::train {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

struct NothingFits {
  explicit NothingFits(RunConfig given, std::int64_t limit_bytes = 1, int num_ranks = 1)
      : config(std::move(given)),
        ranks(num_ranks),
        measured{known_costs(config, ranks)},
        options{.limit_bytes = limit_bytes},
        search(search_plans(config, ranks, measured, options)) {}

  std::int64_t smallest_bytes() const { return search.too_large.front().memory_bytes; }
  std::vector<WayToFit> ways() const { return ways_to_fit(config, ranks, measured, options, search); }

  RunConfig config;
  int ranks;
  MeasuredForms measured;
  PlanSearchOptions options;
  PlanSearch search;
};

RunConfig with_adamw() {
  RunConfig config = without_clipping();
  config.optimizer.name = "adamw";
  config.offload.part_mib = 0.01;
  config.train.global_batch = 8;
  return config;
}

const WayToFit* find(const std::vector<WayToFit>& ways, const std::string& words, int ranks = 1) {
  const auto found =
      std::ranges::find_if(ways, [&](const WayToFit& way) { return in_words(way, ranks) == words; });
  return found == ways.end() ? nullptr : &*found;
}

const std::string kOffload = "offload.optimizer = \"files\"";

/// For a byte less than the smallest plan needs.
std::vector<WayToFit> ways_below_smallest(const RunConfig& config) {
  const NothingFits fixed(config);
  return NothingFits(config, fixed.smallest_bytes() - 1).ways();
}

TEST(WaysToFit, OffloadFreesTheOptimizersState) {
  const std::vector<WayToFit> ways = NothingFits(with_adamw()).ways();
  const WayToFit* offload = find(ways, kOffload);
  ASSERT_NE(offload, nullptr);
  EXPECT_FALSE(offload->is_time_known);
  EXPECT_FALSE(offload->fits);
  EXPECT_EQ(offload->plan.config.offload.optimizer, "files");
}

TEST(WaysToFit, OffloadThatFitsComesBeforeMoreRanks) {
  const NothingFits nothing(with_adamw());
  const std::int64_t with_offload = find(nothing.ways(), kOffload)->plan.memory_bytes;
  ASSERT_LT(with_offload, nothing.smallest_bytes());
  const NothingFits less(with_adamw(), with_offload);
  const std::vector<WayToFit> ways = less.ways();
  ASSERT_FALSE(ways.empty());
  EXPECT_EQ(in_words(ways.front(), 1), kOffload);
  EXPECT_TRUE(ways.front().fits);
  EXPECT_LE(ways.front().plan.memory_bytes, with_offload);
}

TEST(WaysToFit, TriedOffloadIsLeftOut) {
  NothingFits nothing(with_adamw());
  nothing.measured[0].update_in_files = {.fixed_s = 0, .unit_s = 3.0 / kNumel};
  nothing.search = search_plans(nothing.config, 1, nothing.measured, nothing.options);
  EXPECT_EQ(find(nothing.ways(), kOffload), nullptr);
  EXPECT_EQ(nothing.search.too_large.front().config.offload.optimizer, "files");
}

TEST(WaysToFit, ConfiguredOffloadIsNotFreed) {
  RunConfig config = with_adamw();
  config.offload.optimizer = "files";
  config.train.accumulation = 2;
  const std::vector<WayToFit> ways = ways_below_smallest(config);
  ASSERT_FALSE(ways.empty());
  EXPECT_THAT(ways.front().left_out, ElementsAre("train.accumulation"));
}

TEST(WaysToFit, RanksEndWithTheFirstThatFit) {
  const NothingFits nothing(with_adamw());
  const NothingFits less(with_adamw(), nothing.smallest_bytes() - 1);
  std::vector<int> ranks;
  for (const WayToFit& way : less.ways()) {
    if (way.world_size > 1) ranks.push_back(way.world_size);
  }
  EXPECT_THAT(ranks, ElementsAre(2));
  const WayToFit* two = find(less.ways(), "-n 2");
  ASSERT_NE(two, nullptr);
  EXPECT_TRUE(two->fits);
  EXPECT_TRUE(two->is_time_known);
}

TEST(WaysToFit, FixedKeysAreFreedFirst) {
  RunConfig config = with_adamw();
  config.train.accumulation = 2;
  const std::vector<WayToFit> ways = ways_below_smallest(config);
  ASSERT_FALSE(ways.empty());
  EXPECT_THAT(ways.front().left_out, ElementsAre("train.accumulation"));
  EXPECT_EQ(in_words(ways.front(), 1), "without train.accumulation");
  EXPECT_TRUE(ways.front().fits);
}

TEST(WaysToFit, ProcessWithoutTensorsHasNone) {
  RunConfig config = with_adamw();
  MeasuredForms measured = {known_costs(config)};
  measured[0].base_bytes = 64 << 20;
  EXPECT_EQ(bytes_without_tensors(measured), (64 << 20) + kRunBytes);
  const PlanSearchOptions options{.limit_bytes = (64 << 20) + kRunBytes};
  const PlanSearch search = search_plans(config, 1, measured, options);
  EXPECT_THAT(ways_to_fit(config, 1, measured, options, search), IsEmpty());
}

}  // namespace
}  // namespace trireme::train
