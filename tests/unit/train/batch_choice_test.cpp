// The global batch as one more choice of the planner.
#include "trireme/train/planner/batch_choice.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/unit/train/known_costs.h"
#include "trireme/base/error.h"

namespace trireme::train {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::ThrowsMessage;

RunConfig of_batch(std::int64_t global_batch) {
  RunConfig config = without_clipping();
  config.train.global_batch = global_batch;
  config.parallel.schedule = "gpipe";  // one is enough
  return config;
}

BatchChoices choices(const RunConfig& config, const PlanSearchOptions& options = {}) {
  return search_batch_sizes(config, 2, {known_costs(config, 2)}, options);
}

std::vector<std::int64_t> sizes(const BatchChoices& found) {
  std::vector<std::int64_t> all;
  for (const BatchChoice& each : found.batches) all.push_back(each.global_batch);
  return all;
}

TEST(BatchChoices, ArePowersOfTwoAndTheConfigured) {
  const std::vector<std::int64_t> found = sizes(choices(of_batch(6)));
  EXPECT_TRUE(std::ranges::is_sorted(found));
  for (const std::int64_t size : {2, 4, 6, 8, 16}) EXPECT_THAT(found, Contains(size));
}

TEST(BatchChoices, LeaveOutSizesBelowTheirMicroBatches) {
  RunConfig config = of_batch(16);
  config.train.accumulation = 4;
  const std::vector<std::int64_t> found = sizes(choices(config));
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found.front(), 4) << "2 samples are fewer than 4 micro-batches";
  EXPECT_THAT(found, Contains(16));
}

TEST(BatchChoices, SayThatALimitEndedTheSearch) {
  EXPECT_TRUE(choices(of_batch(6)).is_complete);
  EXPECT_FALSE(choices(of_batch(6), {.is_over = [] { return true; }}).is_complete);
}

TEST(BatchChoices, OthersHaveAnEighthOfTheWork) {
  const RunConfig config = of_batch(8);
  const std::int64_t work = search_plans(config, 2, {known_costs(config, 2)}).work;
  const BatchChoices found = choices(config, {.max_work = 8 * work});
  EXPECT_FALSE(found.is_complete);
  EXPECT_EQ(sizes(found), sizes(choices(config))) << "each batch has a plan";
  EXPECT_EQ(found.batches[2].global_batch, 8);
  EXPECT_EQ(found.batches[2].plan.step_s, choices(config).batches[2].plan.step_s);
}

TEST(BatchChoices, EachHasTheFastestPlan) {
  const RunConfig config = of_batch(8);
  for (const BatchChoice& each : choices(config).batches) {
    const RunConfig there = of_batch(each.global_batch);
    EXPECT_EQ(each.plan.step_s, search_plans(there, 2, {known_costs(there, 2)}).plans.front().step_s);
    EXPECT_EQ(each.plan.config.train.global_batch, each.global_batch);
  }
}

TEST(BatchChoices, FastestIsTheSmallestOfEquals) {
  const BatchChoices found = choices(of_batch(8));
  const BatchChoice& best = found.fastest();
  for (const BatchChoice& each : found.batches) {
    EXPECT_LE(each.plan.samples_per_s(), best.plan.samples_per_s() * 1.0101) << each.global_batch;
    if (each.global_batch < best.global_batch) {
      EXPECT_LT(each.plan.samples_per_s(), best.plan.samples_per_s()) << each.global_batch;
    }
  }
  EXPECT_GT(best.global_batch, 2) << "exchanges and updates count less in a larger batch";
}

TEST(BatchChoices, EndWhereNoPlanFits) {
  const RunConfig config = of_batch(8);
  const BatchChoices none = choices(config, {.limit_bytes = 1});
  EXPECT_TRUE(none.batches.empty());
  EXPECT_EQ(none.first_too_large, 2);
  EXPECT_THAT([&] { none.fastest(); }, ThrowsMessage<InvalidArgument>(HasSubstr("no plan fits")));
}

TEST(BatchChoices, RampDecidesTheBatchItself) {
  RunConfig config = of_batch(8);
  config.train.batch_ramp_sizes = {2, 4};
  config.train.batch_ramp_steps = {1, 2};
  EXPECT_THAT([&] { choices(config); },
              ThrowsMessage<InvalidArgument>(HasSubstr("leave it out to search for a batch")));
}

}  // namespace
}  // namespace trireme::train
