// Runs whose learning rate follows AdaScale's gain.
#include <gmock/gmock.h>

#include <cmath>
#include <mutex>

#include "tests/unit/train/small_runs.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/weights_file.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/parts/noise_scale.h"
#include "trireme/train/run/verify.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::HasSubstr;

class AdaScaleTraining : public SmallRuns {
 protected:
  /// 8 times the reference batch.
  RunConfig adaptive(const std::string& name) const {
    RunConfig result = config(name);
    result.optimizer = {.name = "sgd", .lr = 0.05, .momentum = 0.9};
    result.train.global_batch = 128;
    result.learning_rate = {.scale_with_batch = "adascale", .reference_batch = 16};
    return result;
  }

  /// The reports of a run's steps.
  std::vector<StepReport> reports(int ranks, const RunConfig& config) {
    std::vector<StepReport> all;
    std::mutex mutex;
    callbacks_.on_step = [&](const StepReport& report) {
      const std::lock_guard lock(mutex);
      if (all.empty() || all.back().step < report.step) all.push_back(report);
    };
    run(ranks, config);
    callbacks_ = {};
    return all;
  }
};

TEST_F(AdaScaleTraining, TakesTheRateOfTheProgressTimesTheGain) {
  RunConfig config = adaptive("linear");
  config.learning_rate.schedule = "exponential";
  config.learning_rate.period_steps = 10;
  double progress = 0;
  const std::vector<StepReport> steps = reports(2, config);
  ASSERT_EQ(steps.size(), 12U);
  for (const StepReport& step : steps) {
    EXPECT_DOUBLE_EQ(step.progress.value(), progress);
    EXPECT_DOUBLE_EQ(step.lr, 0.05 * std::pow(0.1, std::floor(progress) / 10) * step.gain.value());
    EXPECT_GE(step.gain.value(), 1);
    EXPECT_LE(step.gain.value(), 8);
    progress += step.gain.value();
  }
  EXPECT_EQ(steps[1].gain, 1) << "nothing is known in the first two steps";
  EXPECT_GT(steps[2].gain, 1);
  EXPECT_EQ(num_lines(file("linear", "metrics.jsonl"), "\"gain\":"), 12U);
  EXPECT_EQ(num_lines(file("linear", "metrics.jsonl"), "\"progress\":"), 12U);
}

TEST_F(AdaScaleTraining, TakesTheRootOfTheGainWhereGradientsAreDividedByTheirSize) {
  RunConfig config = adaptive("root");
  config.optimizer = {.name = "adamw", .lr = 0.01, .weight_decay = 0};
  const std::vector<StepReport> steps = reports(2, config);
  ASSERT_EQ(steps.size(), 12U);
  for (const StepReport& step : steps) EXPECT_DOUBLE_EQ(step.lr, 0.01 * std::sqrt(step.gain.value()));
}

TEST_F(AdaScaleTraining, EndsWhenTheScheduleIsOverAndHasNothingLeftToDoThen) {
  RunConfig config = adaptive("over");
  config.learning_rate.progress_steps = 6;
  const RunResult result = run(2, config);
  EXPECT_EQ(result.status, "completed");
  EXPECT_LT(result.steps, 7);
  EXPECT_GT(result.steps, 2);
  EXPECT_EQ(run(2, config, RunStart::kResume).evaluation, std::nullopt) << "there was nothing left to do";
}

TEST_F(AdaScaleTraining, ReadsAScheduleThatIsAsLongAsTheSamplesAtTheReferenceBatch) {
  RunConfig config = adaptive("length");
  EXPECT_EQ(schedule_steps(config, 12), 12 * 8);
  config.learning_rate.progress_steps = 40;
  EXPECT_EQ(schedule_steps(config, 12), 40);
  config.learning_rate.scale_with_batch = "linear";
  EXPECT_EQ(schedule_steps(config, 12), 12);
}

TEST_F(AdaScaleTraining, HasTheSameBitsWhenItIsResumedAndHoweverOftenItIsSaved) {
  const RunResult straight = run(2, adaptive("straight"));
  RunConfig config = adaptive("resumed");
  config.train.max_steps = 5;
  run(2, config);
  config.train.max_steps = 12;
  EXPECT_EQ(run(2, config, RunStart::kResume).weights_xxh3, straight.weights_xxh3);
  config = adaptive("saved");
  config.checkpoint.every_steps = 1;
  config.eval.every_steps = 2;
  EXPECT_EQ(run(2, config).weights_xxh3, straight.weights_xxh3);
}

TEST_F(AdaScaleTraining, GoesOnOnAnotherNumberOfRanks) {
  RunConfig config = adaptive("two");
  config.train.accumulation = 2;
  const RunResult straight = run(2, config);
  config.run.name = "moved";
  config.train.max_steps = 6;
  run(2, config);
  config.train.max_steps = 12;
  config.train.accumulation = 1;
  const RunResult moved = run(4, config, RunStart::kResume);
  const auto weights = [](const RunResult& result) {
    return checkpoint::load_weights_file(result.folder / "model.safetensors").tensors;
  };
  for (const auto& [name, tensor] : weights(straight))
    EXPECT_TRUE(weights(moved).at(name).allclose(tensor, 1e-4, 1e-5)) << name;
}

TEST_F(AdaScaleTraining, CannotBeginOrEndInTheMiddleOfARun) {
  RunConfig config = adaptive("begun");
  config.learning_rate.scale_with_batch = "linear";
  config.train.max_steps = 6;
  run(2, config);
  config.train.max_steps = 12;
  config.learning_rate.scale_with_batch = "adascale";
  EXPECT_THAT([&] { run(2, config, RunStart::kResume); },
              testing::ThrowsMessage<InvalidArgument>(HasSubstr("progress is the sum of the gains")));
}

TEST_F(AdaScaleTraining, IsVerifiedAgainstTheSerialRun) {
  RunConfig config = adaptive("verified");
  config.train.accumulation = 2;
  std::optional<Comparison> verdict;
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const data::DataSource data = open_data(config);
    const Comparison mine = verify(config, context, data, 5);
    if (context.is_main()) verdict = mine;
  });
  EXPECT_TRUE(verdict->equal()) << verdict->first()->describe();
}

TEST_F(AdaScaleTraining, CountsNoProgressInAStepThatIsLeftOut) {
  RunConfig config = adaptive("left-out");
  config.train.precision = "fp16";
  config.scaler = {.initial = 1e10, .factor = 1e6, .most = 1e12};
  const std::vector<StepReport> steps = reports(2, config);
  ASSERT_EQ(steps.size(), 12U);
  ASSERT_TRUE(steps.front().skipped) << "or the test shows nothing";
  for (std::size_t i = 1; i < steps.size(); ++i) {
    const double gained = steps[i - 1].skipped ? 0 : steps[i - 1].gain.value();
    EXPECT_DOUBLE_EQ(steps[i].progress.value(), steps[i - 1].progress.value() + gained);
  }
}

}  // namespace
}  // namespace trireme::train
