#include "trireme/optim/learning_rate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme::optim {
namespace {

using testing::HasSubstr;

TEST(LearningRate, ConstantStaysAfterALinearWarmUp) {
  const auto rate = make_learning_rate({.schedule = "constant", .warmup_steps = 4}, 0.8, 10);
  EXPECT_DOUBLE_EQ(rate->at(0), 0.2);
  EXPECT_DOUBLE_EQ(rate->at(3), 0.8);
  EXPECT_DOUBLE_EQ(rate->at(9), 0.8);
}

TEST(LearningRate, CosineFallsFromTheBaseRateToTheFinalFraction) {
  const auto rate =
      make_learning_rate({.schedule = "cosine", .warmup_steps = 2, .final_fraction = 0.1}, 1, 12);
  EXPECT_DOUBLE_EQ(rate->at(1), 1);
  EXPECT_DOUBLE_EQ(rate->at(2), 1);
  EXPECT_DOUBLE_EQ(rate->at(7), 0.55);
  EXPECT_NEAR(rate->at(11), 0.1 + 0.9 * 0.0244717, 1e-6);
  EXPECT_DOUBLE_EQ(rate->at(12), 0.1);
  EXPECT_DOUBLE_EQ(rate->at(1000), 0.1);
}

TEST(LearningRate, CosineNeverRises) {
  const auto rate = make_learning_rate({.schedule = "cosine"}, 0.3, 100);
  for (std::int64_t step = 1; step < 100; ++step) EXPECT_LT(rate->at(step), rate->at(step - 1));
}

TEST(LearningRate, AWarmUpMayTakeTheWholeRun) {
  const auto rate = make_learning_rate({.schedule = "cosine", .warmup_steps = 5}, 1, 5);
  EXPECT_DOUBLE_EQ(rate->at(4), 1);
}

TEST(LearningRate, RefusesWhatCannotBe) {
  const auto error_of = [](const LearningRateOptions& options) {
    try {
      make_learning_rate(options, 1, 10);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error_of({.schedule = "cosin"}), HasSubstr("cosine"));
  EXPECT_THAT(error_of({.warmup_steps = 11}), HasSubstr("warm-up of 11 steps"));
  EXPECT_THAT(error_of({.final_fraction = 2}), HasSubstr("final fraction"));
}

}  // namespace
}  // namespace trireme::optim
