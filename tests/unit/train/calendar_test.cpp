#include "trireme/train/calendar.h"

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

TEST(Calendar, ARunEndsWithItsLastEpochOrItsLastStep) {
  EXPECT_EQ(Calendar(config_of(0, 0, 0), 10).total_steps(), 30);
  EXPECT_EQ(Calendar(config_of(12, 0, 0), 10).total_steps(), 12);
  EXPECT_EQ(Calendar(config_of(99, 0, 0), 10).total_steps(), 30);
}

TEST(Calendar, EvaluationsComeAtTheEndOfAnEpochUnlessToldOtherwiseAndCheckpointsOnlyWhenTold) {
  const Calendar by_epoch(config_of(0, 0, 0), 10), told(config_of(0, 4, 6), 10);
  EXPECT_TRUE(by_epoch.evaluates(20));
  EXPECT_FALSE(by_epoch.evaluates(12));
  EXPECT_FALSE(by_epoch.saves(20));
  EXPECT_TRUE(told.evaluates(12));
  EXPECT_FALSE(told.evaluates(10));
  EXPECT_TRUE(told.saves(12));
  EXPECT_FALSE(told.saves(10));
}

TEST(Calendar, TheLastStepIsLoggedAlways) {
  const Calendar calendar(config_of(13, 0, 0), 10);
  EXPECT_TRUE(calendar.logs(8));
  EXPECT_FALSE(calendar.logs(9));
  EXPECT_TRUE(calendar.logs(13));
}

TEST(Calendar, AnyNumberOfEpochsIsAtLeastOneStep) {
  RunConfig config = config_of(0, 0, 0);
  config.train.epochs = std::numeric_limits<std::int64_t>::max();
  EXPECT_GT(Calendar(config, 10).total_steps(), std::int64_t{1} << 50);
  config.train.max_steps = 7;
  EXPECT_EQ(Calendar(config, 10).total_steps(), 7);
}

TEST(Calendar, TheNextMeetingIsWhateverComesFirst) {
  const Calendar calendar(config_of(23, 4, 6), 10);
  EXPECT_EQ(calendar.next_meeting(0), 4);
  EXPECT_EQ(calendar.next_meeting(4), 6);
  EXPECT_EQ(calendar.next_meeting(6), 8);
  EXPECT_EQ(calendar.next_meeting(8), 10) << "the end of an epoch, too";
  EXPECT_EQ(calendar.next_meeting(20), 23) << "the end of the run";
}

}  // namespace
}  // namespace trireme::train
