// Elastic jobs under random faults, with a virtual clock: whatever strikes, no generation has two worlds, no
// world begins without state that a process has, and the job ends as promised. One seed again, with every
// event:
//   TRIREME_SIM_SEED=17 TRIREME_SIM_TRACE=1 unit_cli --gtest_filter=SimulatedJobs.OneSeed
// More of them: TRIREME_SIM_SEEDS=10000 unit_cli --gtest_filter=SimulatedJobs.ManySeeds

#include "simulated_job.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace trireme::cli {
namespace {

std::uint64_t number_of(const char* name, std::uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

void expect_seeds(std::uint64_t first, std::uint64_t count, bool has_etcd) {
  int worlds = 0, faults = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    SimulatedJob job({.seed = seed, .has_etcd = has_etcd});
    ASSERT_EQ(job.run(), "") << "after " << seed - first << " seeds without a fault";
    worlds += job.num_worlds();
    faults += job.num_faults();
  }
  EXPECT_GE(worlds, static_cast<int>(count));
  EXPECT_GE(faults, static_cast<int>(count));
}

TEST(SimulatedJobs, KeepPromisesWithEtcd) { expect_seeds(1, 400, true); }
TEST(SimulatedJobs, KeepPromisesWithAFirstHost) { expect_seeds(1'000'001, 100, false); }

TEST(SimulatedJobs, OneSeed) {
  const std::uint64_t seed = number_of("TRIREME_SIM_SEED", 1);
  SimulatedJob job(
      {.seed = seed, .has_etcd = seed < 1'000'000, .prints = std::getenv("TRIREME_SIM_TRACE") != nullptr});
  EXPECT_EQ(job.run(), "");
}

TEST(SimulatedJobs, ManySeeds) {
  const std::uint64_t count = number_of("TRIREME_SIM_SEEDS", 10), first = number_of("TRIREME_SIM_SEED", 1);
  expect_seeds(first, count, first < 1'000'000);
}

}  // namespace
}  // namespace trireme::cli
