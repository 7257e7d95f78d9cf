#include "trireme/train/step/step_schedule.h"

#include <gtest/gtest.h>

#include <limits>

namespace trireme::train {
namespace {

RunConfig config_of(std::int64_t max_steps, std::int64_t eval_every, std::int64_t save_every) {
  RunConfig config;
  config.train.epochs = 3;
  config.train.max_steps = max_steps;
  config.eval.every_steps = eval_every;
  config.checkpoint.every_steps = save_every;
  config.run.log_every_steps = 4;
  return config;
}

/// Epochs of ten steps.
data::BatchLayout of_ten() { return {10, 1}; }

TEST(StepSchedule, RunEndsWithLastEpochOrStep) {
  EXPECT_EQ(StepSchedule(config_of(0, 0, 0), of_ten()).total_steps(), 30);
  EXPECT_EQ(StepSchedule(config_of(12, 0, 0), of_ten()).total_steps(), 12);
  EXPECT_EQ(StepSchedule(config_of(99, 0, 0), of_ten()).total_steps(), 30);
}

TEST(StepSchedule, EvaluatesEachEpochAndSavesOnRequest) {
  const StepSchedule by_epoch(config_of(0, 0, 0), of_ten()), told(config_of(0, 4, 6), of_ten());
  EXPECT_TRUE(by_epoch.evaluates(20));
  EXPECT_FALSE(by_epoch.evaluates(12));
  EXPECT_FALSE(by_epoch.saves(20));
  EXPECT_TRUE(told.evaluates(12));
  EXPECT_FALSE(told.evaluates(10));
  EXPECT_TRUE(told.saves(12));
  EXPECT_FALSE(told.saves(10));
}

TEST(StepSchedule, TheLastStepIsLoggedAlways) {
  const StepSchedule step_schedule(config_of(13, 0, 0), of_ten());
  EXPECT_TRUE(step_schedule.logs(8));
  EXPECT_FALSE(step_schedule.logs(9));
  EXPECT_TRUE(step_schedule.logs(13));
}

TEST(StepSchedule, ComparesReplicasPeriodicallyAndLast) {
  RunConfig config = config_of(13, 0, 0);
  config.parallel.check_replicas_every = 5;
  const StepSchedule step_schedule(config, of_ten());
  EXPECT_TRUE(step_schedule.checks_replicas(5));
  EXPECT_FALSE(step_schedule.checks_replicas(6));
  EXPECT_TRUE(step_schedule.checks_replicas(13));
  config.parallel.check_replicas_every = 0;
  EXPECT_FALSE(StepSchedule(config, of_ten()).checks_replicas(13));
}

TEST(StepSchedule, AnyEpochsAreAtLeastOneStep) {
  RunConfig config = config_of(0, 0, 0);
  config.train.epochs = std::numeric_limits<std::int64_t>::max();
  EXPECT_GT(StepSchedule(config, of_ten()).total_steps(), std::int64_t{1} << 50);
  config.train.max_steps = 7;
  EXPECT_EQ(StepSchedule(config, of_ten()).total_steps(), 7);
}

TEST(StepSchedule, NextMeetingIsTheEarliestEvent) {
  const StepSchedule step_schedule(config_of(23, 4, 6), of_ten());
  EXPECT_EQ(step_schedule.next_meeting(0), 4);
  EXPECT_EQ(step_schedule.next_meeting(4), 6);
  EXPECT_EQ(step_schedule.next_meeting(6), 8);
  EXPECT_EQ(step_schedule.next_meeting(8), 10) << "the end of an epoch, too";
  EXPECT_EQ(step_schedule.next_meeting(20), 23) << "the end of the run";
}

TEST(StepSchedule, GrowingBatchesShortenEpochs) {
  // Epochs of 10 samples: 6 steps of one and 2 of two; 5 of two; 2 of two, one of five, and the rest.
  const data::BatchLayout batches(10, 5, {{.until = 6, .size = 1}, {.until = 15, .size = 2}});
  const StepSchedule step_schedule(config_of(0, 0, 0), batches);
  EXPECT_EQ(step_schedule.total_steps(), 8 + 5 + 4);
  std::vector<std::int64_t> evaluated;
  for (std::int64_t step = 1; step <= step_schedule.total_steps(); ++step)
    if (step_schedule.evaluates(step)) evaluated.push_back(step);
  EXPECT_EQ(evaluated, (std::vector<std::int64_t>{8, 13, 17}));
  EXPECT_EQ(step_schedule.next_meeting(0), 8);
  EXPECT_EQ(step_schedule.next_meeting(8), 13);
  EXPECT_EQ(step_schedule.next_meeting(14), 17);
}

}  // namespace
}  // namespace trireme::train
