// Costs compared with the formulas of Thakur, Rabenseifner and Gropp (2005), calculated by hand.

#include "trireme/topology/all_reduce_cost.h"

#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme::topology {
namespace {

// alpha 1 ms, beta 1 us per byte, gamma a quarter of that. So each term has its own digits.
constexpr MessageCost kCost{.alpha_s = 1e-3, .beta_s_per_byte = 1e-6, .gamma_s_per_byte = 0.25e-6};

double seconds(Algorithm algorithm, int ranks, double bytes) {
  return all_reduce_s(algorithm, ranks, bytes, kCost);
}

TEST(AllReduceCost, OfFourRanksIsWorkedByHand) {
  // 6 a + 1.5 S b + 0.75 S c with S = 1000: 6 + 1.5 + 0.1875 ms.
  EXPECT_DOUBLE_EQ(seconds(Algorithm::kRing, 4, 1000), 7.6875e-3);
  // 4 a and the same bytes.
  EXPECT_DOUBLE_EQ(seconds(Algorithm::kHalvingDoubling, 4, 1000), 5.6875e-3);
  // 4 (a + S b) + 2 S c: 4 + 4 + 0.5 ms.
  EXPECT_DOUBLE_EQ(seconds(Algorithm::kTree, 4, 1000), 8.5e-3);
  // a + 3 S (b + c): 1 + 3 + 0.75 ms.
  EXPECT_DOUBLE_EQ(seconds(Algorithm::kDirect, 4, 1000), 4.75e-3);
  // 2 a and the bytes of the ring.
  EXPECT_DOUBLE_EQ(seconds(Algorithm::kTwoShot, 4, 1000), 3.6875e-3);
}

TEST(AllReduceCost, FoldsRanksBeyondPowerOfTwo) {
  // 4 of 6 ranks stay: 4 a + 1.5 S b + 0.75 S c, and 2 a + 2 S b + S c for the fold.
  EXPECT_DOUBLE_EQ(seconds(Algorithm::kHalvingDoubling, 6, 1000), 6e-3 + 3.5e-3 + 0.4375e-3);
  // The tree has ceil(log2 6) = 3 levels.
  EXPECT_DOUBLE_EQ(seconds(Algorithm::kTree, 6, 1000), 6e-3 + 6e-3 + 0.75e-3);
}

TEST(AllReduceCost, OneRankCostsNothingAndNoneFails) {
  for (const Algorithm each : algorithms()) EXPECT_EQ(seconds(each, 1, 1e9), 0) << name_of(each);
  EXPECT_THROW(seconds(Algorithm::kRing, 0, 1), InvalidArgument);
}

TEST(AllReduceCost, FollowsLatencyWhenSmallBytesWhenLarge) {
  // 16 ranks over 10 ms and 125 MB/s. Direct sends 15 times the bytes once. Two-shot sends as few bytes as
  // the ring, and waits for two messages for any number of ranks.
  const MessageCost slow{.alpha_s = 0.01, .beta_s_per_byte = 8e-9};
  EXPECT_EQ(estimate_all_reduce(16, 1e3, slow).front().algorithm, Algorithm::kDirect);
  EXPECT_EQ(estimate_all_reduce(16, 25e6, slow).front().algorithm, Algorithm::kTwoShot);
  // With 16 ranks the next is halving-doubling. With 3 it is the ring, because two of them would send the
  // whole vector in the fold.
  EXPECT_EQ(estimate_all_reduce(16, 25e6, slow)[1].algorithm, Algorithm::kHalvingDoubling);
  EXPECT_EQ(estimate_all_reduce(3, 25e6, slow)[1].algorithm, Algorithm::kRing);
  // With two ranks all algorithms that halve the vector cost the same, and keep their order.
  EXPECT_EQ(estimate_all_reduce(2, 25e6, slow)[1].algorithm, Algorithm::kRing);
}

TEST(AllReduceCost, EstimatesAreOrderedFromTheFastest) {
  const auto all = estimate_all_reduce(5, 1e5, kCost);
  ASSERT_EQ(all.size(), algorithms().size());
  for (std::size_t i = 1; i < all.size(); ++i) EXPECT_LE(all[i - 1].seconds, all[i].seconds);
}

TEST(AllReduceCost, NamesAreReadAsTheyAreWritten) {
  for (const Algorithm each : algorithms()) EXPECT_EQ(parse_algorithm(name_of(each)), each);
  try {
    parse_algorithm("rin");
    FAIL() << "'rin' was taken for an algorithm";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean 'ring'"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace trireme::topology
