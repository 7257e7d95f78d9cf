#include "trireme/optim/moving_average.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "trireme/base/error.h"

namespace trireme::optim {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class MovingAverage : public testing::Test {
 protected:
  /// Sets the parameters and updates the average.
  void step(double value) {
    const at::NoGradGuard no_grad;
    for (const auto& [name, parameter] : parameters_) parameter.fill_(value);
    average_.update();
  }
  double parameter() const { return parameters_[1].second[0].item<double>(); }
  double average() { return average_.state().at("average/bias")[0].item<double>(); }

  NamedTensors parameters_ = {{"weight", at::ones({2, 2}).set_requires_grad(true)},
                              {"bias", at::ones({2}).set_requires_grad(true)}};
  ExponentialMovingAverage average_{parameters_, 0.75};
};

TEST_F(MovingAverage, BeginsAsTheParametersAndFollowsThem) {
  EXPECT_EQ(average(), 1);
  step(2);
  EXPECT_EQ(average(), 1.25);
  step(0);
  EXPECT_EQ(average(), 0.9375);
  EXPECT_EQ(parameter(), 0);
}

TEST_F(MovingAverage, ReplacesParametersWithinScope) {
  const at::Tensor view = parameters_[1].second.detach();
  step(0.1);
  const double before = parameter(), averaged = average();
  {
    const auto scope = average_.swap_in();
    EXPECT_EQ(parameter(), averaged);
    EXPECT_EQ(view[0].item<double>(), averaged) << "a view of the parameter sees it too";
    EXPECT_TRUE(parameters_[1].second.requires_grad());
  }
  EXPECT_EQ(parameter(), before) << "the same bits";
  EXPECT_EQ(average(), averaged);
}

TEST_F(MovingAverage, ComesBackWhenAnEvaluationThrows) {
  step(0.1);
  const double before = parameter();
  EXPECT_ANY_THROW({
    const auto scope = average_.swap_in();
    throw std::runtime_error("no data");
  });
  EXPECT_EQ(parameter(), before);
}

TEST_F(MovingAverage, RejectsChangesAndSavesWhileSwapped) {
  {
    const auto scope = average_.swap_in();
    EXPECT_THAT([&] { average_.update(); }, ThrowsMessage<InvalidArgument>(HasSubstr("cannot be updated")));
    EXPECT_THAT([&] { average_.state(); }, ThrowsMessage<InvalidArgument>(HasSubstr("cannot be saved")));
    EXPECT_THAT([&] { static_cast<void>(average_.swap_in()); },
                ThrowsMessage<InvalidArgument>(HasSubstr("swapped in again")));
  }
  EXPECT_NO_THROW(average_.update());
}

TEST_F(MovingAverage, RestoredStateContinuesBitForBit) {
  step(0.3);
  ExponentialMovingAverage resumed(parameters_, 0.75);
  for (const auto& [name, tensor] : resumed.state()) tensor.copy_(average_.state().at(name));
  step(0.7);
  resumed.update();
  for (const auto& [name, tensor] : resumed.state()) {
    EXPECT_TRUE(tensor.equal(average_.state().at(name))) << name;
  }
}

TEST(MovingAverageInHalfPrecision, MovesByLessThanAParameterCan) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const at::NoGradGuard no_grad;
    const at::Tensor weight = at::ones({2}, type);
    ExponentialMovingAverage average({{"w", weight}}, 0.999);
    weight.fill_(2);
    for (int i = 0; i < 1000; ++i) average.update();
    const at::Tensor kept = average.state().at("average/w");
    EXPECT_EQ(kept.scalar_type(), at::kFloat);
    EXPECT_NEAR(kept[0].item<double>(), 2 - std::pow(0.999, 1000), 1e-3) << type;
    {
      const auto scope = average.swap_in();
      EXPECT_NEAR(weight[0].item<double>(), 1.632, 0.01) << "rounded to the parameter's type";
    }
    EXPECT_EQ(weight[0].item<double>(), 2);
    EXPECT_NEAR(average.state().at("average/w")[0].item<double>(), 2 - std::pow(0.999, 1000), 1e-3)
        << "an evaluation rounds no average";
  }
}

TEST_F(MovingAverage, RejectsDecayOutsideItsRange) {
  for (const double decay : {1.0, -0.1}) {
    EXPECT_THAT([&] { ExponentialMovingAverage(parameters_, decay); },
                ThrowsMessage<InvalidArgument>(HasSubstr("must be in [0, 1), not ")));
  }
  ExponentialMovingAverage none({}, 0.9);
  none.update();
  EXPECT_TRUE(none.state().empty());
}

}  // namespace
}  // namespace trireme::optim
