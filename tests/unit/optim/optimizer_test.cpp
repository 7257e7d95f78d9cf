#include "trireme/optim/optimizer.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "trireme/base/error.h"

namespace trireme::optim {
namespace {

using testing::HasSubstr;

/// A parameter with a value and a gradient.
at::Tensor parameter(double value, double gradient) {
  at::Tensor tensor = at::full({2}, value).set_requires_grad(true);
  tensor.mutable_grad() = at::full({2}, gradient);
  return tensor;
}

double value_of(const at::Tensor& tensor) { return tensor[0].item<double>(); }

TEST(Sgd, FollowsItsEquation) {
  const at::Tensor weight = parameter(1, 0.5);
  const auto optimizer =
      make_optimizer({.name = "sgd", .weight_decay = 0.1, .momentum = 0.9}, {{"w", weight}});
  // g = 0.5 + 0.1 * 1 = 0.6; v = 0.6; p = 1 - 0.1 * 0.6. Then g = 0.594, v = 0.54 + 0.594 = 1.134.
  optimizer->step(0.1);
  EXPECT_FLOAT_EQ(value_of(weight), 0.94F);
  optimizer->step(0.1);
  EXPECT_FLOAT_EQ(value_of(weight), 0.94F - 0.1134F);
  EXPECT_FLOAT_EQ(value_of(optimizer->state().at("momentum/w")), 1.134F);
  EXPECT_FLOAT_EQ(weight.grad()[0].item<float>(), 0.5F);
}

TEST(Sgd, WithoutMomentumHasNoState) {
  const at::Tensor weight = parameter(1, 0.5);
  const auto optimizer = make_optimizer({.name = "sgd", .momentum = 0}, {{"w", weight}});
  optimizer->step(1);
  EXPECT_FLOAT_EQ(value_of(weight), 0.5F);
  EXPECT_TRUE(optimizer->state().empty());
}

TEST(AdamW, ItsFirstStepMovesByTheRateAndTheDecay) {
  const at::Tensor weight = parameter(1, 0.5);
  const auto optimizer = make_optimizer({.name = "adamw", .weight_decay = 0.1}, {{"w", weight}});
  optimizer->step(0.01);
  EXPECT_NEAR(value_of(weight), 1 - 0.01 * 0.1 - 0.01, 1e-6);
  EXPECT_EQ(optimizer->state().at("step/w").item<float>(), 1);
}

TEST(Optimizer, AParameterWithoutAGradientIsLeftAlone) {
  for (const std::string& name : optimizer_names()) {
    const at::Tensor used = parameter(1, 0.5);
    const at::Tensor unused = at::full({2}, 1.0).set_requires_grad(true);
    const auto optimizer =
        make_optimizer({.name = name, .weight_decay = 0.1}, {{"unused", unused}, {"used", used}});
    optimizer->step(0.1);
    EXPECT_EQ(value_of(unused), 1) << name;
    EXPECT_NE(value_of(used), 1) << name;
    make_optimizer({.name = name}, {{"unused", unused}})->step(0.1);
  }
}

TEST(Optimizer, RestoredStateGoesOnBitForBit) {
  for (const std::string& name : optimizer_names()) {
    const OptimizerOptions options = {.name = name, .weight_decay = 0.01, .nesterov = true};
    const at::Tensor whole = parameter(1, 0.3), resumed = parameter(0, 0.3);
    const auto first = make_optimizer(options, {{"w", whole}});
    for (int i = 0; i < 5; ++i) first->step(0.1);
    const auto second = make_optimizer(options, {{"w", resumed}});
    {
      const at::NoGradGuard no_grad;
      resumed.copy_(whole);
      for (const auto& [key, value] : second->state()) value.copy_(first->state().at(key));
    }
    for (int i = 0; i < 5; ++i) {
      first->step(0.1);
      second->step(0.1);
    }
    EXPECT_TRUE(whole.equal(resumed)) << name;
  }
}

TEST(Optimizer, NamesTheNearestKnownOneAndRefusesBadOptions) {
  const auto error_of = [](const OptimizerOptions& options) {
    try {
      make_optimizer(options, {});
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error_of({.name = "adam"}), HasSubstr("adamw"));
  EXPECT_THAT(error_of({.lr = -1}), HasSubstr("-1"));
  EXPECT_THAT(error_of({.weight_decay = -0.5}), HasSubstr("-0.5"));
  EXPECT_THAT(error_of({.momentum = 1}), HasSubstr("momentum"));
  EXPECT_THAT(error_of({.momentum = 0, .nesterov = true}), HasSubstr("nesterov"));
  EXPECT_THAT(error_of({.name = "adamw", .beta2 = 1}), HasSubstr("beta"));
  EXPECT_THAT(error_of({.name = "adamw", .eps = 0}), HasSubstr("eps"));
}

TEST(ClipGradNorm, ScalesAllGradientsToTheNormAndReturnsTheOldOne) {
  const at::Tensor a = parameter(0, 3), b = parameter(0, 4), none = at::zeros({2});
  EXPECT_FLOAT_EQ(clip_grad_norm({{"a", a}, {"b", b}, {"none", none}}, 1), std::sqrt(50.0F));
  EXPECT_NEAR(clip_grad_norm({{"a", a}, {"b", b}}, 1), 1, 1e-5);
  EXPECT_NEAR(value_of(a.grad()), 3 / std::sqrt(50), 1e-6);
}

TEST(ClipGradNorm, LeavesSmallGradientsAsTheyAre) {
  const at::Tensor a = parameter(0, 0.25);
  EXPECT_FLOAT_EQ(clip_grad_norm({{"a", a}}, 1), 0.25F * std::sqrt(2.0F));
  EXPECT_EQ(value_of(a.grad()), 0.25);
  EXPECT_EQ(clip_grad_norm({}, 1), 0);
}

TEST(ClipGradNorm, ShowsANormThatIsNotANumberAndSpreadsNothing) {
  const at::Tensor a = parameter(0, 2), b = parameter(0, std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(std::isnan(clip_grad_norm({{"a", a}, {"b", b}}, 1)));
  EXPECT_EQ(value_of(a.grad()), 2);
  EXPECT_THROW(clip_grad_norm({{"a", a}}, 0), InvalidArgument);
}

}  // namespace
}  // namespace trireme::optim
