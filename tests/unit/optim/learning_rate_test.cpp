#include "trireme/optim/learning_rate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "trireme/base/error.h"

namespace trireme::optim {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

/// Every schedule of the table, with options for a run of 40 steps.
class EverySchedule : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<LearningRate> make(std::int64_t warmup_steps) const {
    return make_learning_rate({.schedule = GetParam(),
                               .warmup_steps = warmup_steps,
                               .factor = 0.5,
                               .period_steps = 9,
                               .milestones = {20, 30},
                               .decay_steps = 10},
                              0.8, 40);
  }
};
INSTANTIATE_TEST_SUITE_P(All, EverySchedule, testing::ValuesIn(learning_rate_names()),
                         [](const auto& row) { return row.param; });

TEST_P(EverySchedule, WarmsUpToBaseRateOnce) {
  const auto rate = make(8);
  for (std::int64_t step = 1; step < 8; ++step) EXPECT_GT(rate->at(step), rate->at(step - 1)) << step;
  EXPECT_DOUBLE_EQ(rate->at(7), 0.8);
  for (std::int64_t step = 8; step < 45; ++step) EXPECT_LE(rate->at(step), rate->at(step - 1)) << step;
  EXPECT_GE(rate->at(39), 0);
}

TEST_P(EverySchedule, BeginsAtBaseRateWithoutWarmUp) {
  // The cycle begins to fall in its first step.
  EXPECT_NEAR(make(0)->at(0), 0.8, GetParam() == "one_cycle" ? 0.002 : 0);
}

TEST_P(EverySchedule, IsAFunctionOfTheStepAlone) {
  const auto asked_in_order = make(8), asked_once = make(8);
  for (std::int64_t step = 0; step < 30; ++step) static_cast<void>(asked_in_order->at(step));
  EXPECT_EQ(asked_in_order->at(30), asked_once->at(30));
  EXPECT_THROW(static_cast<void>(asked_once->at(-1)), InvalidArgument);
}

TEST_P(EverySchedule, SavesStateOnlyForMetricSchedules) {
  const auto rate = make(0);
  for (int i = 0; i < 15; ++i) rate->observe(1);
  const bool follows_metric = rate->at(39) != make(0)->at(39);
  EXPECT_EQ(rate->state().empty(), !follows_metric);
  EXPECT_EQ(follows_metric, GetParam() == "reduce_on_plateau");
}

TEST(LearningRate, ConstantStaysAfterALinearWarmUp) {
  const auto rate = make_learning_rate({.schedule = "constant", .warmup_steps = 4}, 0.8, 10);
  EXPECT_DOUBLE_EQ(rate->at(0), 0.2);
  EXPECT_DOUBLE_EQ(rate->at(3), 0.8);
  EXPECT_DOUBLE_EQ(rate->at(9), 0.8);
}

TEST(LearningRate, CosineFallsToFinalFraction) {
  const auto rate =
      make_learning_rate({.schedule = "cosine", .warmup_steps = 2, .final_fraction = 0.1}, 1, 12);
  EXPECT_DOUBLE_EQ(rate->at(1), 1);
  EXPECT_DOUBLE_EQ(rate->at(2), 1);
  EXPECT_DOUBLE_EQ(rate->at(7), 0.55);
  EXPECT_NEAR(rate->at(11), 0.1 + 0.9 * 0.0244717, 1e-6);
  EXPECT_DOUBLE_EQ(rate->at(12), 0.1);
  EXPECT_DOUBLE_EQ(rate->at(1000), 0.1);
}

TEST(LearningRate, WarmUpMayTakeWholeRun) {
  const auto rate = make_learning_rate({.schedule = "cosine", .warmup_steps = 5}, 1, 5);
  EXPECT_DOUBLE_EQ(rate->at(4), 1);
}

TEST(LearningRate, OneCycleAcceptsWarmUpOfOne) {
  const auto rate = make_learning_rate({.schedule = "one_cycle", .warmup_steps = 1}, 1, 5);
  EXPECT_DOUBLE_EQ(rate->at(0), 1);
  EXPECT_DOUBLE_EQ(rate->at(4), 0);
}

TEST(LearningRate, MultiStepCountsStepsOfWholeRun) {
  const auto rate =
      make_learning_rate({.schedule = "multi_step", .warmup_steps = 4, .milestones = {6, 8}}, 1, 10);
  EXPECT_DOUBLE_EQ(rate->at(5), 1);
  EXPECT_DOUBLE_EQ(rate->at(6), 0.1);
  EXPECT_NEAR(rate->at(8), 0.01, 1e-15);
}

/// Options of reduce_on_plateau that act early.
LearningRateOptions plateau(std::int64_t cooldown = 0) {
  return {.schedule = "reduce_on_plateau",
          .warmup_steps = 4,
          .final_fraction = 0.2,
          .factor = 0.5,
          .patience = 1,
          .threshold = 0.1,
          .cooldown = cooldown};
}

TEST(ReduceOnPlateau, FallsAfterPatienceToFinalFraction) {
  const auto rate = make_learning_rate(plateau(), 1, 100);
  rate->observe(1);
  rate->observe(0.95);  // less than a tenth counts as no progress
  EXPECT_EQ(rate->at(50), 1);
  rate->observe(0.95);
  EXPECT_EQ(rate->at(50), 0.5);
  EXPECT_EQ(rate->at(1), 0.25) << "the warm-up is scaled as well";
  rate->observe(0.5);
  rate->observe(0.5);
  EXPECT_EQ(rate->at(50), 0.5) << "progress in between starts the count again";
  for (int i = 0; i < 20; ++i) rate->observe(0.5);
  EXPECT_EQ(rate->at(50), 0.2);
}

TEST(ReduceOnPlateau, NaNIsNoProgress) {
  const auto rate = make_learning_rate(plateau(), 1, 100);
  rate->observe(std::numeric_limits<double>::quiet_NaN());
  rate->observe(std::numeric_limits<double>::infinity());
  EXPECT_EQ(rate->at(50), 0.5);
  rate->observe(7);
  EXPECT_EQ(rate->state().at("best").item<double>(), 7);
}

TEST(ReduceOnPlateau, DoesNotCountDuringTheCooldown) {
  const auto rate = make_learning_rate(plateau(/*cooldown=*/3), 1, 100);
  for (int i = 0; i < 3; ++i) rate->observe(1);
  EXPECT_EQ(rate->at(50), 0.5);
  for (int i = 0; i < 4; ++i) rate->observe(1);
  EXPECT_EQ(rate->at(50), 0.5) << "three of them cooled down";
  rate->observe(1);
  EXPECT_EQ(rate->at(50), 0.25);
}

TEST(ReduceOnPlateau, RestoredStateContinuesWithTheSameRates) {
  const std::vector<double> metrics = {1, 0.8, 0.9, 0.9, 0.9, 0.7, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8};
  for (std::size_t cut = 0; cut < metrics.size(); ++cut) {
    const auto whole = make_learning_rate(plateau(1), 1, 100),
               resumed = make_learning_rate(plateau(1), 1, 100);
    for (std::size_t i = 0; i < cut; ++i) whole->observe(metrics[i]);
    const auto saved = whole->state();
    for (const auto& [name, tensor] : resumed->state()) tensor.copy_(saved.at(name));
    for (std::size_t i = cut; i < metrics.size(); ++i) {
      whole->observe(metrics[i]);
      resumed->observe(metrics[i]);
      EXPECT_EQ(whole->at(50), resumed->at(50)) << "cut at " << cut << ", observation " << i;
    }
    EXPECT_LT(whole->at(50), 0.5);
  }
}

struct BadSchedule {
  LearningRateOptions options;
  const char* message;
};

const BadSchedule kBadSchedules[] = {
    {{.schedule = "cosin"}, "unknown learning-rate schedule 'cosin' (did you mean 'cosine'?)"},
    {{.warmup_steps = 11}, "a warm-up of 11 steps does not fit into a run of 10 steps; shorten"},
    {{.initial_fraction = -1}, "lr.initial_fraction must be in [0, 1], not -1"},
    {{.final_fraction = 2}, "lr.final_fraction must be in [0, 1], not 2"},
    {{.factor = 1}, "lr.factor must be in (0, 1), not 1"},
    {{.power = 0}, "lr.power must be a number above 0, not 0"},
    {{.threshold = 1}, "lr.threshold must be in [0, 1), not 1"},
    {{.patience = -1}, "lr.patience must be at least 0, not -1"},
    {{.cooldown = -1}, "lr.cooldown must be at least 0, not -1"},
    {{.schedule = "step"}, "the schedule step needs lr.period_steps of at least 1"},
    {{.schedule = "exponential"}, "the schedule exponential needs lr.period_steps of at least 1"},
    {{.schedule = "step", .warmup_steps = 4, .period_steps = 6},
     "the schedule step would never fall: lr.period_steps = 6, and the run has 6 steps after the warm-up"},
    {{.schedule = "multi_step"}, "the schedule multi_step needs lr.milestones"},
    {{.schedule = "multi_step", .milestones = {3, 3}},
     "milestone 3 of the schedule multi_step must be above 3"},
    {{.schedule = "multi_step", .warmup_steps = 4, .milestones = {4}}, "milestone 4 of the schedule"},
    {{.schedule = "multi_step", .milestones = {3, 10}},
     "milestone 10 of the schedule multi_step does not come before the end of the run of 10 steps; remove it "
     "or train longer"},
    {{.schedule = "wsd"}, "the schedule wsd needs lr.decay_steps of at least 1"},
    {{.schedule = "wsd", .warmup_steps = 5, .decay_steps = 6},
     "the schedule wsd is longer than the run: 5 steps of warm-up and 6 of decay in 10 steps"},
};

TEST(LearningRate, RejectsInvalidOptionsWithReasonAndCure) {
  for (const BadSchedule& bad : kBadSchedules) {
    EXPECT_THAT([&] { make_learning_rate(bad.options, 1, 10); },
                ThrowsMessage<InvalidArgument>(HasSubstr(bad.message)));
  }
  EXPECT_THROW(make_learning_rate({}, -1, 10), InvalidArgument);
  EXPECT_THROW(make_learning_rate({}, 1, -1), InvalidArgument);
}

TEST(ScaledLr, FollowsTheBatchAsAsked) {
  const auto scaled = [](const char* how) {
    return scaled_lr({.scale_with_batch = how, .reference_batch = 256}, 0.1, 1024);
  };
  EXPECT_EQ(scaled("none"), 0.1);
  EXPECT_DOUBLE_EQ(scaled("linear"), 0.4);
  EXPECT_DOUBLE_EQ(scaled("sqrt"), 0.2);
  EXPECT_EQ(scaled_lr({}, 0.1, 1024), 0.1);
}

TEST(ScaledLr, RejectsToScaleFromNothing) {
  EXPECT_THAT([] { scaled_lr({.scale_with_batch = "linear"}, 0.1, 64); },
              ThrowsMessage<InvalidArgument>(HasSubstr("scale_with_batch = linear needs a reference_batch")));
  EXPECT_THAT([] { scaled_lr({.scale_with_batch = "linaer"}, 0.1, 64); },
              ThrowsMessage<InvalidArgument>(HasSubstr("did you mean 'linear'?")));
}

}  // namespace
}  // namespace trireme::optim
