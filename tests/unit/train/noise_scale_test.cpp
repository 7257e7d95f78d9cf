// The gradient noise scale in runs. It depends only on the parts of the batch and not on the ranks that
// compute them. It is in the files of the run.
#include <gmock/gmock.h>

#include <mutex>

#include "tests/unit/train/small_runs.h"
#include "trireme/base/error.h"
#include "trireme/telemetry/run_summary.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::HasSubstr;

class NoiseScaleOfRuns : public SmallRuns {
 protected:
  RunConfig noisy(const std::string& name) const {
    RunConfig result = config(name);
    result.model.hidden = {8, 8, 8};
    result.train.noise_scale_every_steps = 1;
    result.train.global_batch = 96;
    return result;
  }

  /// The result of three steps on each rank.
  std::vector<optim::GradientNoise> found(int ranks, const RunConfig& config) const {
    std::vector<optim::GradientNoise> result(static_cast<std::size_t>(ranks));
    comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
      const data::DataSource data = open_data(config);
      Trainer trainer(config, context, data);
      for (int step = 0; step < 3; ++step) trainer.step();
      while (trainer.last_report()) {
      }
      RunResult end;
      trainer.summarize(end);
      result[static_cast<std::size_t>(context.rank())] = end.noise.value();
    });
    return result;
  }

  void expect_alike(int ranks, const RunConfig& config, const optim::GradientNoise& expected) const {
    for (const optim::GradientNoise& mine : found(ranks, config)) {
      EXPECT_NEAR(mine.of_sample, expected.of_sample, 1e-4 * expected.of_sample);
      EXPECT_NEAR(mine.signal, expected.signal, 1e-4 * expected.signal);
    }
  }
};

TEST_F(NoiseScaleOfRuns, IsEqualFromRanksAndMicrobatches) {
  RunConfig config = noisy("parts");
  config.train.accumulation = 4;
  const optim::GradientNoise of_one = found(1, config).front();
  EXPECT_GT(of_one.of_sample, 0);
  EXPECT_GT(of_one.signal, 0);
  config.train.accumulation = 2;
  expect_alike(2, config, of_one);
  config.train.accumulation = 1;
  const auto of_four = found(4, config);
  expect_alike(4, config, of_one);
  for (const optim::GradientNoise& mine : of_four) {
    EXPECT_EQ(mine.of_sample, of_four.front().of_sample);
    EXPECT_EQ(mine.signal, of_four.front().signal);
  }
}

TEST_F(NoiseScaleOfRuns, IsEqualFromUnequalParts) {
  RunConfig config = noisy("uneven");
  config.train.global_batch = 95;
  config.train.accumulation = 4;
  const optim::GradientNoise of_one = found(1, config).front();
  config.train.accumulation = 2;
  expect_alike(2, config, of_one);
}

TEST_F(NoiseScaleOfRuns, IsEqualForAnyCutOfModel) {
  RunConfig config = noisy("cut");
  config.train.accumulation = 4;
  const optim::GradientNoise of_one = found(1, config).front();
  RunConfig cut = config;
  cut.train.accumulation = 1;
  cut.parallel = {.pipeline = 2, .microbatches = 2, .partition = "parameters"};
  for (const char* schedule : {"1f1b", "zb-h1", "zb-v"}) {
    SCOPED_TRACE(schedule);
    cut.parallel.schedule = schedule;
    expect_alike(4, cut, of_one);
  }
  for (const std::int64_t zero : {1, 2, 3}) {
    SCOPED_TRACE(zero);
    RunConfig sharded = config;
    sharded.train.accumulation = 2;
    sharded.parallel.zero = zero;
    expect_alike(2, sharded, of_one);
  }
}

TEST_F(NoiseScaleOfRuns, IgnoresLossScaleAndClipping) {
  RunConfig config = noisy("scaled");
  config.train.accumulation = 2;
  const optim::GradientNoise plain = found(1, config).front();
  config.train.precision = "fp16";
  config.scaler.initial = 4096;
  const optim::GradientNoise scaled = found(1, config).front();
  EXPECT_NEAR(scaled.of_sample, plain.of_sample, 0.05 * plain.of_sample);
  EXPECT_NEAR(scaled.signal, plain.signal, 0.05 * plain.signal);
}

TEST_F(NoiseScaleOfRuns, ChangesNoWeight) {
  RunConfig with = noisy("with"), without = noisy("without");
  without.train.noise_scale_every_steps = 0;
  EXPECT_EQ(run(2, with).weights_xxh3, run(2, without).weights_xxh3);
}

TEST_F(NoiseScaleOfRuns, IsInMetricsSummaryAndLastLines) {
  const RunResult result = run(2, noisy("told"));
  ASSERT_TRUE(result.noise.has_value());
  EXPECT_EQ(num_lines(file("told", "metrics.jsonl"), "\"noise_scale\":"), 12U);
  const telemetry::Record summary =
      telemetry::parse_summary(file("told", "summary.json"), folder_.path() / "told/summary.json");
  EXPECT_DOUBLE_EQ(summary.number("largest_useful_batch", 0), result.noise->scale());
  EXPECT_THAT(file("told", "console.log"), HasSubstr("largest useful batch: about "));
  RunConfig silent = noisy("silent");
  silent.train.noise_scale_every_steps = 0;
  EXPECT_FALSE(run(2, silent).noise.has_value());
  EXPECT_EQ(num_lines(file("silent", "metrics.jsonl"), "noise_scale"), 0U);
  EXPECT_EQ(num_lines(file("silent", "console.log"), "largest useful batch"), 0U);
}

TEST_F(NoiseScaleOfRuns, IsMeasuredAsOftenAsAsked) {
  RunConfig config = noisy("seldom");
  config.train.noise_scale_every_steps = 5;
  run(2, config);
  EXPECT_EQ(num_lines(file("seldom", "metrics.jsonl"), "\"noise_scale\":"), 12U - 4) << "from the fifth on";
}

TEST_F(NoiseScaleOfRuns, ContinuesAfterResumeOnOtherRanks) {
  RunConfig config = noisy("straight");
  config.train.accumulation = 2;
  const RunResult straight = run(2, config);
  config.run.name = "resumed";
  config.train.max_steps = 6;
  run(2, config);
  config.train.max_steps = 12;
  const RunResult same = run(2, config, RunStart::kResume);
  EXPECT_EQ(same.noise->of_sample, straight.noise->of_sample);
  EXPECT_EQ(same.weights_xxh3, straight.weights_xxh3);
  config.run.name = "moved";
  config.train.max_steps = 6;
  run(2, config);
  config.train.max_steps = 12;
  config.train.accumulation = 4;
  const RunResult moved = run(1, config, RunStart::kResume);
  EXPECT_NEAR(moved.noise->scale(), straight.noise->scale(), 1e-3 * straight.noise->scale());
}

TEST_F(NoiseScaleOfRuns, BeginsAfterResumeWithoutEarlierMeasurement) {
  RunConfig config = noisy("begun");
  config.train.noise_scale_every_steps = 0;
  config.train.max_steps = 6;
  run(2, config);
  config.train.max_steps = 12;
  config.train.noise_scale_every_steps = 1;
  EXPECT_TRUE(run(2, config, RunStart::kResume).noise.has_value());
}

}  // namespace
}  // namespace trireme::train
