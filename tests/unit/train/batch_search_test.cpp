// The batch-size finder: its trials, its end, and its reaction to noise and memory.
#include "trireme/train/estimate/batch_search.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "tests/unit/train/small_runs.h"
#include "trireme/base/error.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/estimate/measurements.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class BatchSearchOfRuns : public SmallRuns {
 protected:
  RunConfig wide() const {
    RunConfig result = config("search");
    result.model.hidden = {64, 64};
    result.train.global_batch = 128;
    return result;
  }

  /// The result of rank 0, which is that of all ranks.
  BatchSearch found(int ranks, const RunConfig& config, BatchSearchOptions options) const {
    options.trial_s = 0;
    BatchSearch result;
    comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
      const data::DataSource data = open_data(config);
      const BatchSearch mine =
          search_batches(check_run_config(config, context.world_size()), context, data, options);
      if (context.is_main()) result = mine;
    });
    return result;
  }

  /// With costs that were measured for `measured`.
  BatchSearch estimated(int ranks, const RunConfig& config, const RunConfig& measured,
                        BatchSearchOptions options) const {
    options.trial_s = 0;
    BatchSearch result;
    comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
      const data::DataSource data = open_data(config);
      const MeasuredForms costs = {measure_costs(resolve_plan(measured, ranks), context, data)};
      BatchSearchOptions with_costs = options;
      with_costs.costs = &costs;
      const BatchSearch mine = search_batches(resolve_plan(config, ranks), context, data, with_costs);
      if (context.is_main()) result = mine;
    });
    return result;
  }

  static std::vector<std::int64_t> batches(const BatchSearch& search) {
    std::vector<std::int64_t> result;
    for (const BatchTrial& each : search.trials) result.push_back(each.global_batch);
    return result;
  }
};

TEST_F(BatchSearchOfRuns, DoublesBatchesAndWeighsSpeedAgainstNoise) {
  const BatchSearch search = found(2, wide(), {.max_samples = 512, .noise_scale = 384});
  ASSERT_THAT(batches(search), testing::ElementsAre(32, 64, 128, 256, 512));
  EXPECT_DOUBLE_EQ(search.trials[0].efficiency, (384.0 + 128) / (384 + 32));
  EXPECT_DOUBLE_EQ(search.trials[2].efficiency, 1);
  EXPECT_DOUBLE_EQ(search.trials[4].efficiency, (384.0 + 128) / (384 + 512));
  for (const BatchTrial& each : search.trials) {
    EXPECT_GT(each.step_s, 0);
    EXPECT_DOUBLE_EQ(each.goodput(), each.efficiency * static_cast<double>(each.global_batch) / each.step_s);
    EXPECT_LE(each.goodput(), best_goodput(search)->goodput());
    EXPECT_LE(each.samples_per_s(), 1.021 * fastest(search).samples_per_s());
  }
}

TEST_F(BatchSearchOfRuns, EstimatesBatchesAndMeasuresTheBest) {
  const BatchSearch search = estimated(2, wide(), wide(), {.max_samples = 512, .noise_scale = 384});
  EXPECT_EQ(search.why_measured, "");
  EXPECT_THAT(batches(search), testing::ElementsAre(32, 64, 128, 256, 512));
  std::set<std::int64_t> checked;
  for (const BatchTrial& each : search.checked) {
    checked.insert(each.global_batch);
    EXPECT_GT(each.step_s, 0);
    EXPECT_GT(each.memory_bytes, 0);
    EXPECT_DOUBLE_EQ(each.efficiency, (384.0 + 128) / (384 + static_cast<double>(each.global_batch)));
  }
  EXPECT_EQ(checked,
            (std::set<std::int64_t>{128, fastest(search).global_batch, best_goodput(search)->global_batch}));
  EXPECT_DOUBLE_EQ(search.trials[2].step_s, search.checked.front().step_s) << "corrected by it";
  EXPECT_TRUE(std::ranges::is_sorted(search.trials, {}, &BatchTrial::step_s)) << "a line over samples";
}

TEST_F(BatchSearchOfRuns, EstimatesEndAtTheMemoryLimit) {
  RunConfig config = wide();
  config.model.hidden = {512, 512, 512};
  const BatchSearch free = estimated(1, config, config, {.max_samples = 512, .noise_scale = 1e9});
  ASSERT_THAT(batches(free), testing::ElementsAre(32, 64, 128, 256, 512));
  const std::int64_t of_256 = free.trials[3].memory_bytes, of_512 = free.trials[4].memory_bytes;
  ASSERT_GT(of_512, of_256);
  const BatchSearch bound =
      estimated(1, config, config, {.memory_limit_bytes = (of_256 + of_512) / 2, .noise_scale = 1e9});
  EXPECT_EQ(batches(bound).back(), 256);
  EXPECT_THAT([&] { estimated(1, config, config, {.memory_limit_bytes = 1000, .noise_scale = 1}); },
              testing::ThrowsMessage<InvalidArgument>(HasSubstr("smaller batch")));
}

TEST_F(BatchSearchOfRuns, CostsOfAnotherModelAreNotUsed) {
  RunConfig other = wide();
  other.model.hidden = {32};
  const BatchSearch search = estimated(2, wide(), other, {.max_samples = 128, .noise_scale = 384});
  EXPECT_THAT(search.why_measured, HasSubstr("model.hidden"));
  EXPECT_THAT(batches(search), testing::ElementsAre(32, 64, 128));
  EXPECT_THAT(search.checked, testing::IsEmpty());
}

TEST_F(BatchSearchOfRuns, RunsOverAsynchronousStages) {
  RunConfig config = wide();
  config.train.clip_norm = 0;
  config.parallel.pipeline = 2;
  for (const std::string schedule : {"pipedream", "pipedream-2bw"}) {
    config.parallel.schedule = schedule;
    const BatchSearch search = found(2, config, {.max_samples = 256});
    EXPECT_THAT(batches(search), testing::ElementsAre(32, 64, 128, 256)) << schedule;
    EXPECT_FALSE(search.noise_scale);
    EXPECT_THAT(search.why_no_noise, HasSubstr("there is no gradient of all stages"));
  }
}

TEST_F(BatchSearchOfRuns, RunsOverBalancedReplicas) {
  RunConfig config = wide();
  config.data.balance = "dynamic";
  EXPECT_THAT(batches(found(2, config, {.max_samples = 128, .noise_scale = 300})),
              testing::ElementsAre(32, 64, 128));
}

TEST_F(BatchSearchOfRuns, UsesWholePartsOfPlanOnce) {
  RunConfig config = wide();
  config.train.global_batch = 6;
  config.train.accumulation = 3;
  EXPECT_THAT(batches(found(2, config, {.max_samples = 24, .noise_scale = 1})),
              testing::ElementsAre(6, 12, 24));
}

// The number of prefetched batches at the peak is random, so activations must be much larger than those.
TEST_F(BatchSearchOfRuns, EndsAtMemoryLimitAndNamesFit) {
  RunConfig config = wide();
  config.model.hidden = {512, 512, 512};
  const BatchSearch free = found(1, config, {.max_samples = 512, .noise_scale = 1e9});
  ASSERT_THAT(batches(free), testing::ElementsAre(32, 64, 128, 256, 512));
  const std::int64_t of_256 = free.trials[3].memory_bytes, of_512 = free.trials[4].memory_bytes;
  EXPECT_GT(of_512, of_256);
  const std::int64_t limit = (of_256 + of_512) / 2;
  const BatchSearch bound = found(1, config, {.memory_limit_bytes = limit, .noise_scale = 1e9});
  EXPECT_EQ(batches(bound).back(), 256);
  ASSERT_TRUE(bound.largest_that_fits);
  EXPECT_GE(*bound.largest_that_fits, 256);
  EXPECT_LT(*bound.largest_that_fits, 512);
  EXPECT_EQ(bound.memory_limit_bytes, limit);
}

TEST_F(BatchSearchOfRuns, RejectsLimitBelowConfiguration) {
  const BatchSearchOptions options{.memory_limit_bytes = 1000, .noise_scale = 1};
  EXPECT_THAT([&] { found(1, wide(), options); },
              testing::ThrowsMessage<InvalidArgument>(AllOf(
                  HasSubstr("train.global_batch = "), HasSubstr("1000 B"), HasSubstr("smaller batch"))));
}

TEST_F(BatchSearchOfRuns, SplitsOnePartToMeasureNoise) {
  RunConfig config = wide();
  const BatchSearch search = found(1, config, {.max_samples = 128});
  ASSERT_TRUE(search.noise_scale) << search.why_no_noise;
  EXPECT_GT(*search.noise_scale, 0);
  EXPECT_NE(best_goodput(search), nullptr);
}

TEST_F(BatchSearchOfRuns, SaysWhyThereIsNoNoise) {
  RunConfig config = wide();
  config.parallel.tensor = 2;
  const BatchSearch search = found(2, config, {.max_samples = 128});
  EXPECT_FALSE(search.noise_scale);
  EXPECT_THAT(search.why_no_noise, HasSubstr("noise_scale"));
  EXPECT_EQ(best_goodput(search), nullptr);
  EXPECT_EQ(search.trials.front().efficiency, 0);
}

}  // namespace
}  // namespace trireme::train
