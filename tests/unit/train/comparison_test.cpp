#include "trireme/train/run/comparison.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "trireme/base/error.h"

namespace trireme::train {
namespace {

using optim::NamedTensors;
using testing::HasSubstr;

const Bounds kBounds{.loss = 1e-3, .gradient = 1e-3, .weight = 1e-2, .reason = "test"};

NamedTensors two(double a, double b) {
  return {{"a", at::full({4}, a, at::kFloat)}, {"b", at::full({2}, b, at::kFloat)}};
}

TEST(Comparison, OfTheSameBitsIsBitwise) {
  Comparison comparison(kBounds);
  comparison.loss(1, 0.5, 0.5);
  comparison.gradients(1, two(1, 2), two(1, 2));
  comparison.weights(1, two(0, 0), two(1, 2), two(1, 2));
  EXPECT_TRUE(comparison.equal());
  EXPECT_TRUE(comparison.bitwise());
}

TEST(Comparison, WithinBoundIsEqualButNotBitwise) {
  Comparison comparison(kBounds);
  comparison.gradients(1, two(1.0005, 2), two(1, 2));
  EXPECT_TRUE(comparison.equal());
  EXPECT_FALSE(comparison.bitwise());
  EXPECT_NEAR(comparison.largest().difference, 5e-4, 1e-5);
}

TEST(Comparison, NamesFirstTensorOutsideAndKeepsLargest) {
  Comparison comparison(kBounds);
  comparison.gradients(1, two(1, 2.2), two(1, 2));
  comparison.gradients(2, two(2, 2), two(1, 2));
  ASSERT_TRUE(comparison.first().has_value());
  EXPECT_THAT(comparison.first()->describe(), HasSubstr("step 1: gradient of b differs by 0.1"));
  EXPECT_EQ(comparison.largest().tensor, "a");
  EXPECT_EQ(comparison.largest().step, 2);
}

TEST(Comparison, AMissingGradientCountsAsZeros) {
  Comparison comparison(kBounds);
  comparison.gradients(1, {{"a", at::Tensor()}}, {{"a", at::ones({3})}});
  EXPECT_FALSE(comparison.equal());
  Comparison none(kBounds);
  none.gradients(1, {{"a", at::Tensor()}, {"b", at::ones({2})}}, {{"a", at::Tensor()}, {"b", at::ones({2})}});
  EXPECT_TRUE(none.bitwise());
}

TEST(Comparison, RoundingGradientIsMeasuredAgainstModel) {
  Comparison comparison(kBounds);
  comparison.gradients(1, two(1, 3e-8), two(1, 1e-8));
  EXPECT_TRUE(comparison.equal());
}

TEST(Comparison, NumbersThatAreNoneAreNeverEqual) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Comparison loss(kBounds), gradient(kBounds);
  loss.loss(1, nan, 1);
  gradient.gradients(1, two(nan, 2), two(1, 2));
  EXPECT_FALSE(loss.equal());
  EXPECT_FALSE(gradient.equal());
}

TEST(Comparison, WeightsAreMeasuredAgainstTheirChange) {
  Comparison comparison(kBounds);
  // The step added 0.01 here and 0.0102 on the other side: two percent of the step, 2e-4 of the weight.
  comparison.weights(1, two(1, 1), two(1.0102, 1), two(1.01, 1));
  ASSERT_FALSE(comparison.equal());
  EXPECT_NEAR(comparison.first()->difference, 0.02, 1e-3);
  EXPECT_EQ(comparison.first()->what, "weight");
}

TEST(Comparison, DivergedReplicaNamesBothRanks) {
  Comparison comparison(kBounds);
  comparison.replica_differs(3, 5, 1);
  EXPECT_EQ(comparison.first()->describe(), "step 3: the weights of rank 5 are not those of rank 1");
}

TEST(Comparison, OfNothingIsNotEqual) {
  EXPECT_FALSE(Comparison(kBounds).equal());
  Comparison loss(kBounds), undefined(kBounds), unmoved(kBounds), left_out(kBounds);
  loss.loss(1, 0.5, 0.5);
  undefined.gradients(1, {{"a", at::Tensor()}}, {{"a", at::Tensor()}});
  unmoved.weights(1, two(1, 1), two(1, 1), two(1, 1));
  left_out.skipped(1, two(1, 1), two(1, 1));
  for (const Comparison* each : {&loss, &undefined, &unmoved, &left_out}) {
    EXPECT_FALSE(each->verified());
    EXPECT_FALSE(each->equal());
    EXPECT_FALSE(each->bitwise());
    EXPECT_FALSE(each->first().has_value());
  }
}

TEST(Comparison, CountsStepsAndSkippedOnes) {
  Comparison comparison(kBounds);
  comparison.loss(1, 0.5, 0.5);
  comparison.skipped(1, two(1, 1), two(1, 1));
  comparison.gradients(2, two(1, 2), two(1, 2));
  comparison.weights(2, two(0, 0), two(1, 2), two(1, 2));
  EXPECT_EQ(comparison.num_steps(), 2);
  EXPECT_EQ(comparison.num_skipped(), 1);
  EXPECT_TRUE(comparison.bitwise());
}

TEST(Comparison, WeightChangeInSkippedStepIsDifference) {
  Comparison comparison(kBounds);
  comparison.gradients(1, two(1, 2), two(1, 2));
  comparison.skipped(2, two(1, 1), two(1, 1 + 1e-7));
  ASSERT_FALSE(comparison.equal());
  EXPECT_EQ(comparison.first()->tensor, "b");
}

TEST(Comparison, StepSkippedByOneSideNamesIt) {
  Comparison comparison(kBounds);
  comparison.skipped_by_one(2, Comparison::Side::kExpected);
  ASSERT_FALSE(comparison.equal());
  EXPECT_THAT(comparison.first()->describe(), HasSubstr("step 2: the serial run alone left it out"));
}

// A format without values below 1e-7 may remove that from every element, however small the gradient is. It
// may also change the step accordingly, but not more.
TEST(Comparison, RoundingOfTheNumberFormatIsTolerated) {
  Bounds bounds = kBounds;
  bounds.gradient_loss = 1e-7;
  const auto with = [&](double lost) {
    Comparison comparison(bounds);
    comparison.gradients(1, two(1e-6 - lost, 1e-6), two(1e-6, 1e-6));
    comparison.weights(1, two(1, 1), two(1, 1), two(1, 1));
    return comparison.equal();
  };
  EXPECT_TRUE(with(0.9e-7));
  EXPECT_FALSE(with(1.1e-7));
}

TEST(Comparison, RejectsSidesWithOtherNames) {
  Comparison comparison(kBounds);
  EXPECT_THROW(comparison.gradients(1, two(1, 2), {{"a", at::ones({4})}}), InvalidArgument);
  EXPECT_THROW(comparison.gradients(1, {{"x", at::ones({4})}}, {{"a", at::ones({4})}}), InvalidArgument);
}

}  // namespace
}  // namespace trireme::train
