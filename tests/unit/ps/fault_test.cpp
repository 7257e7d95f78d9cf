// A cluster under faults in random order. To repeat one seed with every event:
//   TRIREME_SIM_SEED=17 TRIREME_SIM_TRACE=1 unit_ps --gtest_filter=FaultSeeds.OneSeed
// Chains of three: TRIREME_SIM_REPLICAS=3. More seeds: TRIREME_SIM_SEEDS=100000 unit_ps
// --gtest_filter=FaultSeeds.ManySeeds

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/unit/ps/fault_run.h"

namespace trireme::ps {
namespace {

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

void expect_seeds(std::uint64_t first, std::uint64_t count, const FaultRunOptions& options) {
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const std::string failure = FaultRun(seed, options).run();
    ASSERT_EQ(failure, "") << "after " << seed - first << " seeds that were well";
  }
}

/// Each takes a hundredth of a minute, so that they can run in parallel.
class Faults : public testing::TestWithParam<int> {};

TEST_P(Faults, LoseAndDoubleNothing) {
  expect_seeds(1 + 100 * static_cast<std::uint64_t>(GetParam()), 100,
               {.single_messages = GetParam() % 2 == 1});
}
INSTANTIATE_TEST_SUITE_P(Seeds, Faults, testing::Range(0, 10));

/// A replica in the middle of a chain forwards messages in both directions, and may end between them.
class ChainsOfThree : public testing::TestWithParam<int> {};

TEST_P(ChainsOfThree, LoseAndDoubleNothing) {
  expect_seeds(500'001 + 100 * static_cast<std::uint64_t>(GetParam()), 100,
               {.num_replicas = 3, .single_messages = GetParam() % 2 == 1});
}
INSTANTIATE_TEST_SUITE_P(Seeds, ChainsOfThree, testing::Range(0, 4));

TEST(FaultSeeds, OneSeed) {
  const std::uint64_t seed = from_environment("TRIREME_SIM_SEED", 1);
  const bool single_messages = (seed - 1) / 100 % 2 == 1;
  const auto num_replicas = static_cast<std::uint32_t>(from_environment("TRIREME_SIM_REPLICAS", 2));
  EXPECT_EQ(FaultRun(seed, {.num_replicas = num_replicas, .single_messages = single_messages}).run(), "");
}

TEST(FaultSeeds, ManySeeds) {
  const std::uint64_t count = from_environment("TRIREME_SIM_SEEDS", 10);
  const std::uint64_t first = from_environment("TRIREME_SIM_SEED", 1'000'000);
  const auto num_replicas = static_cast<std::uint32_t>(from_environment("TRIREME_SIM_REPLICAS", 2));
  expect_seeds(first, count / 2, {.num_replicas = num_replicas, .single_messages = false});
  expect_seeds(first + count / 2, count - count / 2, {.num_replicas = num_replicas, .single_messages = true});
}

TEST(FaultSeeds, TheSameSeedGivesTheSameTrace) {
  for (const std::uint64_t seed : {3, 4, 5}) {
    FaultRun once(seed), again(seed), another(seed + 1000);
    EXPECT_EQ(once.run(), again.run());
    another.run();
    EXPECT_EQ(once.trace_hash(), again.trace_hash());
    EXPECT_EQ(once.num_events(), again.num_events());
    EXPECT_NE(once.trace_hash(), another.trace_hash());
  }
}

}  // namespace
}  // namespace trireme::ps
