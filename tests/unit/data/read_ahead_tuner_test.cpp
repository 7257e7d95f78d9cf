#include "trireme/data/internal/read_ahead_tuner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace trireme::data {
namespace {

using testing::HasSubstr;

constexpr ReadAheadLimits kRoomy = {.max_workers = 8, .memory_bytes = 1 << 30};

/// A consumer that needs `wanted` steps/s, and workers that each produce `of_one`, together at most `limit`.
struct Machine {
  double wanted = 100, of_one = 30, limit = 1e9;
  /// With fewer batches ahead, steps wait for slow batches, in addition to the workers' throughput.
  int smooth_from = 1;

  LoadingWindow window_of(const ReadAhead& ahead) const {
    const double most = std::min(ahead.workers * of_one, limit);
    const double rate = std::min(most, wanted);
    double waited_s = 1 - rate / wanted;
    if (waited_s == 0 && ahead.prefetch < smooth_from) waited_s = 0.1;
    const double busy = most > limit - 1e-9 && most < wanted ? ahead.workers : rate / of_one;
    return {.wall_s = 1,
            .waited_s = waited_s,
            .busy_s = std::min<double>(busy, ahead.workers),
            .steps = static_cast<std::int64_t>(rate),
            .bytes_of_step = 1 << 20};
  }
};

ReadAhead settled(ReadAheadTuner& tuner, const Machine& machine, int windows = 40) {
  for (int i = 0; i < windows; ++i) tuner.look(machine.window_of(tuner.now()));
  return tuner.now();
}

TEST(ReadAheadTuner, AddsThreadsUntilStepsNoLongerWait) {
  ReadAheadTuner tuner({.workers = 1, .prefetch = 4}, kRoomy);
  const std::string why = tuner.look(Machine().window_of(tuner.now()));
  EXPECT_THAT(why, HasSubstr("2 threads read ahead: steps waited 70 % of the time for data"));
  const ReadAhead end = settled(tuner, Machine());
  EXPECT_EQ(end.workers, 4);
  EXPECT_EQ(end.prefetch, 4);
}

TEST(ReadAheadTuner, RemovesUselessThreadAndDoesNotRetry) {
  ReadAheadTuner tuner({.workers = 1, .prefetch = 4}, kRoomy);
  const Machine slow_disk = {.wanted = 100, .of_one = 30, .limit = 60};
  int changes = 0;
  std::string last;
  for (int i = 0; i < 40; ++i) {
    const std::string why = tuner.look(slow_disk.window_of(tuner.now()));
    if (!why.empty()) {
      ++changes;
      last = why;
    }
  }
  EXPECT_EQ(tuner.now().workers, 2);
  EXPECT_EQ(changes, 3) << last;
  EXPECT_THAT(last, HasSubstr("2 threads read ahead again: with one more came 60 steps/s, before 60"));
}

TEST(ReadAheadTuner, TriesAgainWhereTheWorkHasChanged) {
  ReadAheadTuner tuner({.workers = 1, .prefetch = 4}, kRoomy);
  settled(tuner, {.wanted = 100, .of_one = 30, .limit = 60});
  EXPECT_EQ(settled(tuner, {.wanted = 100, .of_one = 15}).workers, 7);
}

TEST(ReadAheadTuner, ReadsFurtherAheadWithIdleThreads) {
  ReadAheadTuner tuner({.workers = 2, .prefetch = 4}, kRoomy);
  const ReadAhead end = settled(tuner, {.wanted = 40, .of_one = 30, .smooth_from = 16});
  EXPECT_EQ(end.workers, 2);
  EXPECT_EQ(end.prefetch, 16);
}

TEST(ReadAheadTuner, KeepsWithinItsLimits) {
  ReadAheadTuner few({.workers = 1, .prefetch = 4}, {.max_workers = 2, .memory_bytes = 1 << 30});
  EXPECT_EQ(settled(few, Machine()).workers, 2);
  ReadAheadTuner small({.workers = 2, .prefetch = 4}, {.max_workers = 8, .memory_bytes = 9 << 20});
  EXPECT_EQ(settled(small, {.wanted = 40, .of_one = 30, .smooth_from = 16}).prefetch, 8);
}

TEST(ReadAheadTuner, RemovesThreadsAfterLongIdleness) {
  ReadAheadTuner tuner({.workers = 6, .prefetch = 4}, kRoomy);
  const Machine fast = {.wanted = 100, .of_one = 80};
  EXPECT_EQ(settled(tuner, fast, 7).workers, 6);
  EXPECT_EQ(settled(tuner, fast, 100).workers, 2);
}

TEST(ReadAheadTuner, ChangesNothingWhereNothingWaits) {
  ReadAheadTuner tuner({.workers = 1, .prefetch = 4}, kRoomy);
  const Machine enough = {.wanted = 100, .of_one = 400};
  for (int i = 0; i < 100; ++i) EXPECT_EQ(tuner.look(enough.window_of(tuner.now())), "");
}

}  // namespace
}  // namespace trireme::data
