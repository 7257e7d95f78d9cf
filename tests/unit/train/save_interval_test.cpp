// checkpoint.interval = "auto": the distance between saves. Runs keep their numbers.

#include "trireme/train/run/save_interval.h"

#include <gmock/gmock.h>

#include "tests/unit/train/small_runs.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/plan/goodput.h"

namespace trireme::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr double kDay_s = 86400;

TEST(SaveInterval, IsDalysIntervalInWholeSteps) {
  EXPECT_EQ(steps_between_saves({.save_s = 20, .step_s = 1, .between_failures_s = 17578.125}), 825);
  EXPECT_EQ(steps_between_saves({.save_s = 20, .step_s = 10, .between_failures_s = 17578.125}), 83);
  EXPECT_EQ(steps_between_saves({.save_s = 20, .step_s = 1e6, .between_failures_s = 1000}), 1);
  EXPECT_EQ(steps_between_saves({.save_s = 0, .step_s = 1, .between_failures_s = kDay_s}), 4);
  EXPECT_EQ(steps_between_saves({.save_s = 1, .step_s = 0, .between_failures_s = 1e300}),
            1'000'000'000'000'000);
  EXPECT_THROW(steps_between_saves({.save_s = 1, .step_s = 1, .between_failures_s = 0}), InvalidArgument);
}

TEST(SaveInterval, UsesGivenOrObservedFailures) {
  telemetry::GoodputRecord seen{.seconds = {7200, 0, 0, 0, 0, 0, 0}, .steps = 9, .lost_steps = 0};
  EXPECT_EQ(failure_rate_of({}, seen).between_s, kDay_s + 7200);
  EXPECT_EQ(failure_rate_of({}, seen).reason,
            "no failure in 2h 00m of this run, and one in 24h 00m was assumed");
  seen.interruptions = 3;
  EXPECT_EQ(failure_rate_of({}, seen).between_s, (kDay_s + 7200) / 4);
  EXPECT_THAT(failure_rate_of({}, seen).reason, HasSubstr("3 failures in 2h 00m"));
  const FailureRate given = failure_rate_of({.mean_time_between_failures_s = 500}, seen);
  EXPECT_EQ(given.between_s, 500);
  EXPECT_EQ(given.reason, "checkpoint.mean_time_between_failures_s");
}

TEST(SaveInterval, SavesEarlyAndThenAsChosen) {
  SaveInterval interval({.interval = "auto"}, 100);
  EXPECT_FALSE(interval.saves(100));
  EXPECT_TRUE(interval.saves(110));
  interval.saved(110);
  EXPECT_FALSE(interval.chooses(111));
  EXPECT_TRUE(interval.chooses(112));
  EXPECT_TRUE(interval.choose(112, 50));
  EXPECT_TRUE(interval.saves(160));
  EXPECT_FALSE(interval.chooses(113));
  interval.saved(160);
  EXPECT_FALSE(interval.choose(162, 60)) << "a fifth more is no news";
  EXPECT_TRUE(interval.choose(162, 1));
  EXPECT_TRUE(interval.saves(163)) << "the earliest that is left";

  const SaveInterval given({.every_steps = 7, .interval = "auto"}, 100);
  EXPECT_TRUE(given.saves(107));
  SaveInterval steps({.every_steps = 7}, 100);
  steps.saved(107);
  for (int step = 100; step < 200; ++step) EXPECT_FALSE(steps.saves(step) || steps.chooses(step)) << step;
}

class AutomaticSaves : public SmallRuns {
 protected:
  RunConfig automatic(const std::string& name, double between_failures_s) const {
    RunConfig result = config(name);
    result.train.max_steps = 24;
    result.train.epochs = 4;
    result.checkpoint = {.keep = 100, .interval = "auto", .mean_time_between_failures_s = between_failures_s};
    return result;
  }
  std::vector<std::int64_t> saved_steps_of(const std::string& run) const {
    std::vector<std::int64_t> steps;
    for (const auto& path : checkpoint::list_checkpoints(folder_ / run / "checkpoints"))
      steps.push_back(checkpoint::load_checkpoint(path).step);
    return steps;
  }
};

TEST_F(AutomaticSaves, FollowTheFailureRateAndTellWhy) {
  run(2, automatic("safe", 1e15));
  EXPECT_THAT(saved_steps_of("safe"), ElementsAre(10, 24)) << "the first, and the end";
  run(2, automatic("fragile", 1e-9));
  EXPECT_THAT(saved_steps_of("fragile"), ElementsAre(10, 13, 16, 19, 22, 24));
  EXPECT_EQ(num_lines(file("fragile", "console.log"), "checkpoints every 1 step ("), 1U)
      << "once, unless it changes";
  EXPECT_THAT(file("fragile", "console.log"), HasSubstr("(checkpoint.mean_time_between_failures_s)"));
  run(2, automatic("seen", 0));
  EXPECT_THAT(file("seen", "console.log"), HasSubstr("one in 24h 00m was assumed)"));
}

TEST_F(AutomaticSaves, KeepNumbersOfRunAcrossResume) {
  RunConfig quiet = automatic("quiet", 0);
  quiet.checkpoint = {.every_steps = 0};
  const std::string expected = run(2, quiet).weights_xxh3;
  EXPECT_EQ(run(2, automatic("fragile", 1e-9)).weights_xxh3, expected);

  const RunConfig failing = automatic("failing", 1e-9);
  callbacks_.on_step = [](const StepReport& report) {
    if (report.step == 18) throw DataError("the disk is gone");
  };
  EXPECT_THROW(run(2, failing), DataError);
  callbacks_.on_step = nullptr;
  EXPECT_EQ(run(2, failing, RunStart::kResume).weights_xxh3, expected);
}

TEST_F(AutomaticSaves, AreRejectedWhereSavesChangeNumbers) {
  RunConfig apart = automatic("apart", 0);
  apart.parallel.local_steps = 4;
  EXPECT_THAT([&] { run(2, apart); },
              ThrowsMessage<InvalidArgument>(HasSubstr("checkpoint.interval = \"auto\"")));
  RunConfig sliced = automatic("sliced", 0);
  sliced.parallel.priority = "forward";
  EXPECT_THROW(run(2, sliced), InvalidArgument);
}

}  // namespace
}  // namespace trireme::train
