#include "cli/launch/run_pace.h"

#include <gtest/gtest.h>

#include "trireme/base/text.h"

namespace trireme::cli {
namespace {

std::string all_reduce(std::uint64_t number, const std::string& group) {
  return text("all_reduce #", number, " of group ", group, ", 64 f32, running");
}

TEST(Pauses, AreUnusualFarBeyondLongestCompleted) {
  Pauses pauses;
  EXPECT_EQ(pauses.look(100), 0);
  EXPECT_TRUE(pauses.is_unusual(3));
  EXPECT_EQ(pauses.look(120), 20);
  EXPECT_EQ(pauses.look(120), 0) << "none has ended";
  EXPECT_FALSE(pauses.is_unusual(20));
  EXPECT_FALSE(pauses.is_unusual(59));
  EXPECT_TRUE(pauses.is_unusual(60));
  EXPECT_EQ(pauses.look(121), 1);
  EXPECT_FALSE(pauses.is_unusual(20)) << "it is remembered";
}

TEST(Pauses, PauseOfHoursDelaysReportByMinute) {
  Pauses pauses;
  pauses.look(100);
  pauses.look(3700);
  EXPECT_FALSE(pauses.is_unusual(3659));
  EXPECT_TRUE(pauses.is_unusual(3660));
}

TEST(Pauses, PausesWithExternalCauseAreForgotten) {
  Pauses pauses;
  pauses.look(100);
  pauses.disturb();
  EXPECT_EQ(pauses.look(200), 100);
  EXPECT_TRUE(pauses.is_unusual(3));
  pauses.look(205);
  EXPECT_FALSE(pauses.is_unusual(14)) << "the next one is";
}

TEST(OperationSpeed, FallsWhenGroupNumbersGrowMoreSlowly) {
  OperationSpeed speed;
  std::uint64_t number = 0;
  for (double now = 0; now < 10; now += 0.5) speed.note(0, all_reduce(number += 50, "world"), now);
  EXPECT_LT(speed.slowdown(), 1.5);
  for (double now = 10; now < 13; now += 0.5) speed.note(0, all_reduce(number += 2, "world"), now);
  EXPECT_NEAR(speed.slowdown(), 25, 0.5);
}

TEST(OperationSpeed, ComparesNumbersOfOneGroupOnly) {
  OperationSpeed speed;
  // A rank in two groups. The operation numbers of one are far larger, so the numbers in its status jump.
  std::uint64_t world = 100, pair = 100'000;
  for (double now = 0; now < 30; now += 0.5) {
    world += 20, pair += 20;
    const bool in_world = static_cast<int>(now * 2) % 14 < 7;
    speed.note(0, in_world ? all_reduce(world, "world") : all_reduce(pair, "pair"), now);
    EXPECT_LT(speed.slowdown(), 2) << now;
  }
}

TEST(OperationSpeed, PauseAndLaterTimeHaveSeparateSpeeds) {
  OperationSpeed speed;
  std::uint64_t number = 0;
  for (double now = 0; now < 10; now += 0.5) speed.note(0, all_reduce(number += 50, "world"), now);
  for (double now = 10; now < 30; now += 0.5) speed.note(0, all_reduce(number, "world"), now);
  EXPECT_GT(speed.slowdown(), 10);
  speed.forget_present();
  EXPECT_EQ(speed.slowdown(), 1);
  for (double now = 30; now < 40; now += 0.5) {
    speed.note(0, all_reduce(number += 50, "world"), now);
    EXPECT_LT(speed.slowdown(), 1.5) << now;
  }
}

TEST(OperationSpeed, IsThatOfRankWithLeastLoss) {
  OperationSpeed speed;
  std::uint64_t one = 0, other = 0;
  for (double now = 0; now < 10; now += 0.5) {
    speed.note(0, all_reduce(one += 50, "world"), now);
    speed.note(1, all_reduce(other += 50, "world"), now);
  }
  for (double now = 10; now < 14; now += 0.5) {
    speed.note(0, all_reduce(one += 1, "world"), now);
    speed.note(1, all_reduce(other += 50, "world"), now);
  }
  EXPECT_LT(speed.slowdown(), 1.5);
}

}  // namespace
}  // namespace trireme::cli
