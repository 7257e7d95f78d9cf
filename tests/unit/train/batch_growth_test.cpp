// Runs whose global batch follows the gradient noise scale.
#include "trireme/train/parts/batch_growth.h"

#include <gmock/gmock.h>

#include <limits>
#include <mutex>

#include "tests/unit/train/small_runs.h"
#include "tests/unit/train/verified_run.h"
#include "trireme/base/error.h"
#include "trireme/data/producer.h"
#include "trireme/train/run/verify.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kEvery = 2;

TrainOptions growing_by_noise() {
  return {.global_batch = 64,
          .batch_ramp_sizes = {16, 32},
          .batch_ramp_by = "noise",
          .noise_scale_every_steps = kEvery};
}

/// Runs steps with this noise scale. Returns the steps after which the batch grew.
std::vector<std::int64_t> grown(BatchGrowth& growth, std::int64_t steps,
                                const std::function<double(std::int64_t)>& noise) {
  std::vector<std::int64_t> after;
  for (std::int64_t step = 1; step <= steps; ++step) {
    if (growth.observe({.step = step, .noise_scale = noise(step)}, step + 5)) after.push_back(step);
  }
  return after;
}

TEST(BatchGrowth, TakesNextSizeWhenNoiseReachesIt) {
  BatchGrowth growth(growing_by_noise());
  EXPECT_EQ(growth.size(), 16);
  EXPECT_THAT(grown(growth, 1000, [](std::int64_t step) { return static_cast<double>(step) / 5; }),
              ElementsAre(160, 320));
  EXPECT_EQ(growth.size(), 64);
  EXPECT_THAT(growth.ends(), ElementsAre(165, 325));
}

TEST(BatchGrowth, IsNeverBeyondTheNoise) {
  BatchGrowth growth(growing_by_noise());
  EXPECT_THAT(grown(growth, 1000, [](std::int64_t) { return 63.0; }), ElementsAre(20));
  EXPECT_EQ(growth.size(), 32);
}

TEST(BatchGrowth, WaitsForMeasurementsWithEachSize) {
  BatchGrowth growth(growing_by_noise());
  const auto after =
      grown(growth, 1000, [](std::int64_t) { return std::numeric_limits<double>::infinity(); });
  ASSERT_EQ(after.size(), 2U);
  EXPECT_EQ(after[0], BatchGrowth::kMeasurements * kEvery);
  EXPECT_GE(after[1], growth.ends()[0] + (BatchGrowth::kMeasurements - 1) * kEvery);
}

TEST(BatchGrowth, ContinuesFromTheEndsOfItsSizes) {
  const auto noise = [](std::int64_t step) { return static_cast<double>(step) / 5; };
  BatchGrowth whole(growing_by_noise()), second(growing_by_noise());
  grown(whole, 400, noise);
  second.restore({165});
  grown(second, 400, noise);
  EXPECT_EQ(second.ends(), whole.ends());
}

class GrowingRuns : public SmallRuns {
 protected:
  GrowingRuns() { data_ = verified_data(); }

  RunConfig growing(const std::string& name) const {
    RunConfig config = this->config(name);
    config.train = growing_by_noise();
    config.train.global_batch = 32;
    config.train.batch_ramp_sizes = {8, 16};
    config.train.epochs = 1000;
    config.train.max_steps = 80;
    config.train.accumulation = 2;
    config.train.clip_norm = 0;
    config.optimizer = {.name = "sgd", .lr = 0.02, .momentum = 0.9};
    config.learning_rate = {.scale_with_batch = "linear", .reference_batch = 8};
    config.checkpoint = {};
    return config;
  }
  /// Batch and learning rate of each step.
  std::vector<std::pair<std::int64_t, double>> steps_of(int ranks, const RunConfig& config) {
    std::vector<std::pair<std::int64_t, double>> steps;
    std::mutex mutex;
    callbacks_.on_step = [&](const StepReport& report) {
      const std::lock_guard lock(mutex);
      if (std::ssize(steps) < report.step) steps.emplace_back(report.full_batch, report.lr);
    };
    result_ = run(ranks, config);
    callbacks_ = {};
    return steps;
  }
  RunResult result_;
};

TEST_F(GrowingRuns, TakeLargerBatchesAndSayWhy) {
  const auto steps = steps_of(2, growing("grown"));
  ASSERT_EQ(result_.decisions.size(), 2U);
  std::int64_t size = 8;
  for (const Decision& each : result_.decisions) {
    EXPECT_EQ(each.knob, "global batch");
    EXPECT_EQ(each.verdict, Verdict::kSet);
    EXPECT_EQ(each.from, text(size));
    EXPECT_EQ(steps.at(static_cast<std::size_t>(each.from_step) - 2).first, size);
    size *= 2;
    EXPECT_EQ(steps.at(static_cast<std::size_t>(each.from_step) - 1).first, size);
  }
  for (const auto& [batch, lr] : steps)
    EXPECT_DOUBLE_EQ(lr, 0.02 * static_cast<double>(batch) / 8) << "lr.scale_with_batch";
  EXPECT_THAT(file("grown", "metrics.jsonl"),
              AllOf(HasSubstr(R"("knob":"global batch","verdict":"set","from":"8","to":"16")"),
                    HasSubstr("the gradient noise scale is ")));
  EXPECT_THAT(file("grown", "summary.json"), HasSubstr(R"("adapt_set": 2)"));
  EXPECT_THAT(file("grown", "console.log"),
              HasSubstr("global batch 8, up to 32 as the gradient noise scale"));
}

TEST_F(GrowingRuns, HaveTheSameBatchesOnAnyRanks) {
  RunConfig one = growing("one"), two = growing("two");
  one.train.accumulation = 4;
  const auto expected = steps_of(1, one);
  EXPECT_EQ(steps_of(2, two), expected);
  EXPECT_GT(expected.back().first, 8);
}

TEST_F(GrowingRuns, ContinueWithTheSameBits) {
  const auto expected = steps_of(1, growing("whole"));
  const std::string bits = result_.weights_xxh3;
  ASSERT_EQ(result_.decisions.size(), 2U);
  const std::int64_t decided = result_.decisions[0].step, holds = result_.decisions[0].from_step;
  for (const std::int64_t step : {decided - 1, decided, decided + 1, holds - 1, holds, holds + 5}) {
    RunConfig config = growing(text("stopped", step));
    config.train.max_steps = step;
    config.checkpoint.every_steps = step;
    run(1, config);
    config.train.max_steps = 80;
    const RunResult result = run(1, config, RunStart::kResume);
    EXPECT_EQ(result.steps, 80);
    EXPECT_EQ(result.weights_xxh3, bits) << "resumed after step " << step;
  }
}

TEST_F(GrowingRuns, EndTheirEpochsSooner) {
  RunConfig config = growing("epochs");
  config.train.epochs = 10;
  config.train.max_steps = 0;
  const auto steps = steps_of(2, config);
  EXPECT_LT(steps.size(), 120U) << "12 steps of 8 are an epoch of 96 samples";
  EXPECT_EQ(result_.steps, std::ssize(steps));
}

TEST_F(GrowingRuns, AreVerifiedAtEachSize) {
  RunConfig config = growing("verified");
  config.train.adapt = true;
  std::optional<Comparison> verdict;
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const Comparison mine = verify(config, context, *data_, 40);
    if (context.is_main()) verdict = mine;
  });
  EXPECT_TRUE(verdict->equal()) << verdict->first()->describe();
}

TEST_F(GrowingRuns, RejectInvalidRamps) {
  const auto rejected = [&](void (*change)(RunConfig&), const char* reason) {
    RunConfig config = growing("rejected");
    change(config);
    EXPECT_THAT([&] { resolve_plan(config, 2); }, ThrowsMessage<InvalidArgument>(HasSubstr(reason)));
  };
  rejected([](RunConfig& c) { c.train.batch_ramp_sizes = {}; }, "found none; list them");
  rejected([](RunConfig& c) { c.train.batch_ramp_steps = {10, 20}; }, "train.batch_ramp_steps has 2 steps");
  rejected([](RunConfig& c) { c.train.noise_scale_every_steps = 0; }, "the noise is not measured");
  rejected([](RunConfig& c) { c.train.batch_ramp_sizes = {16, 8}; }, "list the sizes in rising order");
  rejected(
      [](RunConfig& c) {
        c.train.max_steps = 0;
        c.learning_rate.schedule = "cosine";
      },
      "set train.max_steps");
  rejected([](RunConfig& c) { c.run.exact = true; }, "run.exact = true needs results independent");
}

TEST_F(GrowingRuns, AreRejectedForFixedBatches) {
  const data::DataSource samples = verified_data();
  const data::Example like = samples.train->trial_batch(1);
  data_->train = std::make_shared<data::ProducedSamples>(
      data::ProducedOptions{.like = {like.input.at(0)[0], like.target.at(0)[0]},
                            .samples_per_epoch = 96,
                            .keyed = true,
                            .threads = 1,
                            .produce = [](data::Producer&) {}});
  EXPECT_THAT([&] { run(1, growing("produced")); },
              ThrowsMessage<InvalidArgument>(HasSubstr("the batches of this kind of data cannot change")));
}

}  // namespace
}  // namespace trireme::train
