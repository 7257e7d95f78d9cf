#include "trireme/base/min_max_cuts.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

namespace trireme {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(MinMaxCuts, MinimizeCostliestPartAndBalanceOthers) {
  const std::vector<double> even(10, 1), steep = {10, 1, 1, 1, 1, 1, 1}, nothing(4, 0);
  EXPECT_THAT(min_max_cuts(even, 4), ElementsAre(2, 4, 7, 10));
  EXPECT_THAT(min_max_cuts(steep, 3), ElementsAre(1, 4, 7));
  EXPECT_THAT(min_max_cuts(even, 1), ElementsAre(10));
  EXPECT_THAT(min_max_cuts(nothing, 4), ElementsAre(1, 2, 3, 4)) << "no part is empty";
}

// 1 | 5 | 2 3 has the squares 51 and the largest part 5, 1 5 | 2 | 3 the squares 49 and the largest part 6.
TEST(MinMaxCuts, PreferSmallerLargestPartOverBalance) {
  const std::vector<double> costs = {1, 5, 2, 3};
  EXPECT_THAT(min_max_cuts(costs, 3), ElementsAre(1, 2, 4));
}

TEST(MinMaxCuts, LeaveOutPartsThatMayNotBe) {
  const auto odd_only = [](std::size_t, std::size_t from, std::size_t to) {
    return (to - from) % 2 == 1 ? 1 : std::numeric_limits<double>::infinity();
  };
  EXPECT_THAT(min_max_cuts(4, 2, odd_only), ElementsAre(1, 4));
  EXPECT_THAT(min_max_cuts(5, 2, odd_only), IsEmpty()) << "two odd parts are even together";
}

TEST(MinMaxCuts, TellTheCostWhichPartItIs) {
  const auto first_is_dear = [](std::size_t part, std::size_t from, std::size_t to) {
    return static_cast<double>(to - from) * (part == 0 ? 4 : 1);
  };
  EXPECT_THAT(min_max_cuts(5, 2, first_is_dear), ElementsAre(1, 5));
}

}  // namespace
}  // namespace trireme
