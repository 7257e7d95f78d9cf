#include "trireme/base/clock.h"

#include <gtest/gtest.h>

#include <limits>

#include "trireme/base/text.h"

namespace trireme {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Deadline, AnyLongTimeoutEndsInFuture) {
  for (const double timeout_s : {3600.0, 1e9, 1e10, 1e11, 1e300, kInfinity}) {
    const Deadline deadline = Deadline::after_s(timeout_s);
    EXPECT_FALSE(deadline.expired()) << timeout_s;
    EXPECT_GT(deadline.remaining_s(), 3000) << timeout_s;
    EXPECT_GT(whole_milliseconds(timeout_s).count(), 3000000) << timeout_s;
    EXPECT_LE(whole_milliseconds(timeout_s).count(), std::numeric_limits<int>::max()) << timeout_s;
    EXPECT_FALSE(human_duration(timeout_s).starts_with('-')) << human_duration(timeout_s);
  }
}

TEST(Deadline, OfATimeoutBelowZeroHasPassed) {
  for (const double timeout_s : {0.0, -1.0, -1e11, -kInfinity}) {
    EXPECT_TRUE(Deadline::after_s(timeout_s).expired()) << timeout_s;
    EXPECT_EQ(Deadline::after_s(timeout_s).remaining_s(), 0) << timeout_s;
    EXPECT_EQ(whole_milliseconds(timeout_s).count(), 1) << timeout_s;
  }
}

}  // namespace
}  // namespace trireme
