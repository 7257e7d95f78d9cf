#include "trireme/data/loading_report.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace trireme::data {
namespace {

double seconds(const LoadingCounts& counts, Stage stage) {
  return counts.stage_s[static_cast<std::size_t>(stage)];
}

void sleep_a_little() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

TEST(LoadingMeter, InnerStageHasItsOwnTime) {
  LoadingCounts counts;
  {
    const LoadingMeter meter(counts);
    const StageScope transforming(Stage::kTransform);
    const StageScope decoding(Stage::kDecode);
    sleep_a_little();
  }
  EXPECT_GE(seconds(counts, Stage::kDecode), 0.02);
  EXPECT_GE(counts.busy_s, seconds(counts, Stage::kDecode) + seconds(counts, Stage::kTransform));
}

TEST(LoadingMeter, CountsForItsThreadWhileItLives) {
  LoadingCounts counts;
  {
    const LoadingMeter meter(counts);
    count_read(10);
    std::thread([] { count_read(1000); }).join();
    count_cache(true);
    count_cache(false);
    count_retry();
    count_skipped();
  }
  count_read(500);
  const StageScope nobodys(Stage::kRead);
  EXPECT_EQ(counts.bytes_read, 10);
  EXPECT_EQ(counts.cache_hits, 1);
  EXPECT_EQ(counts.cache_misses, 1);
  EXPECT_EQ(counts.retries, 1);
  EXPECT_EQ(counts.skipped, 1);
  EXPECT_EQ(slowest_stage(counts), "");
}

TEST(LoadingMeter, ExceptionLeavesNoStageOpen) {
  LoadingCounts counts;
  for (int again = 0; again < 2; ++again) {
    const LoadingMeter meter(counts);
    try {
      const StageScope reading(Stage::kRead);
      throw 1;
    } catch (int) {
    }
    sleep_a_little();  // in no stage
    const StageScope collating(Stage::kCollate);
    sleep_a_little();
  }
  EXPECT_GE(seconds(counts, Stage::kCollate), 0.04);
  EXPECT_GE(counts.busy_s, seconds(counts, Stage::kRead) + seconds(counts, Stage::kCollate) + 0.04);
}

TEST(LoadingCounts, TheSlowestStageHasTheMostSeconds) {
  EXPECT_EQ(slowest_stage({.stage_s = {1, 4, 3, 2}}), "decode");
  EXPECT_EQ(slowest_stage({}), "");
}

TEST(LoadingCounts, AddUp) {
  LoadingCounts sum;
  const LoadingCounts one = {.stage_s = {1, 2, 3, 4, 5},
                             .busy_s = 10,
                             .samples = 5,
                             .bytes_read = 6,
                             .cache_hits = 7,
                             .cache_misses = 8,
                             .retries = 9,
                             .skipped = 11};
  (sum += one) += one;
  EXPECT_EQ(sum.stage_s, (std::array<double, kNumStages>{2, 4, 6, 8, 10}));
  EXPECT_EQ(sum.busy_s, 20);
  EXPECT_EQ(sum.samples, 10);
  EXPECT_EQ(sum.bytes_read, 12);
  EXPECT_EQ(sum.cache_hits, 14);
  EXPECT_EQ(sum.cache_misses, 16);
  EXPECT_EQ(sum.retries, 18);
  EXPECT_EQ(sum.skipped, 22);
}

}  // namespace
}  // namespace trireme::data
