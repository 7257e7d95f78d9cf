#include "trireme/comm/clock_offset.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "trireme/base/clock.h"
#include "trireme/comm/context.h"

namespace trireme::comm {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

/// Each rank's clock is `rank` seconds after that of rank 0.
telemetry::ClockSample measured_by(Context& context) {
  return measure_clock_offset(context.world(), [&] { return now_ns() - context.rank() * kSecond; });
}

TEST(ClockOffset, IsFoundWithinHalfRoundTrip) {
  run_ranks_as_threads(3, [](Context& context) {
    const telemetry::ClockSample sample = measured_by(context);
    EXPECT_LE(std::abs(sample.offset_ns - context.rank() * kSecond), sample.error_ns);
    EXPECT_LT(sample.error_ns, kSecond / 2) << "else the offset would not be told from none";
  });
}

TEST(ClockOffset, RankZeroAndSingleWorldHaveNone) {
  run_ranks_as_threads(2, [](Context& context) {
    const telemetry::ClockSample sample = measured_by(context);
    EXPECT_TRUE(!context.is_main() || (sample.offset_ns == 0 && sample.error_ns == 0));
  });
  run_ranks_as_threads(1, [](Context& context) { EXPECT_EQ(measured_by(context).offset_ns, 0); });
}

/// The way there takes 30 s and the way back no time, except in one round. That round counts.
TEST(ClockOffset, TheShortestRoundTripCounts) {
  run_ranks_as_threads(2, [](Context& context) {
    int reads = 0;
    const telemetry::ClockSample sample = measure_clock_offset(context.world(), [&] {
      // Rank 1 reads before and after each round. Its clock runs ahead by 30 s inside of all rounds but the
      // fifth.
      const bool after = context.rank() == 1 && reads++ % 2 == 1;
      const bool fifth = reads == 10;
      return now_ns() + (after && !fifth ? 30 * kSecond : 0);
    });
    EXPECT_LT(std::abs(sample.offset_ns), 10 * kSecond);
  });
}

}  // namespace
}  // namespace trireme::comm
