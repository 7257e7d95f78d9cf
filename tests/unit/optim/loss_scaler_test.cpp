#include "trireme/optim/loss_scaler.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>

#include <limits>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::optim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

NamedTensors with_gradients(const std::vector<double>& values) {
  NamedTensors parameters;
  for (const double value : values) {
    at::Tensor parameter = at::ones({3});
    parameter.mutable_grad() = at::full({3}, value);
    parameters.emplace_back(text("p", parameters.size()), parameter);
  }
  return parameters;
}

TEST(LossScaler, DividesGradientsByTheScale) {
  const LossScaler scaler({.initial = 8});
  const NamedTensors parameters = with_gradients({16, 4});
  EXPECT_TRUE(scaler.unscale(parameters));
  EXPECT_TRUE(parameters[0].second.grad().equal(at::full({3}, 2.0)));
  EXPECT_TRUE(parameters[1].second.grad().equal(at::full({3}, 0.5)));
}

TEST(LossScaler, SeesOneNumberThatIsNotFinite) {
  const LossScaler scaler({.initial = 8});
  EXPECT_FALSE(scaler.unscale(with_gradients({1, kInfinity})));
  EXPECT_FALSE(scaler.unscale(with_gradients({std::numeric_limits<double>::quiet_NaN(), 1})));
  EXPECT_TRUE(scaler.unscale({{"without a gradient", at::ones({1})}}));
}

TEST(LossScaler, FallsAtOnceAndGrowsAfterSuccesses) {
  LossScaler scaler({.initial = 8, .factor = 2, .interval = 3});
  scaler.left_out_step(1);
  EXPECT_EQ(scaler.scale(), 4);
  scaler.took_step();
  scaler.took_step();
  scaler.left_out_step(4);
  EXPECT_EQ(scaler.scale(), 2);
  for (int i = 0; i < 2; ++i) scaler.took_step();
  EXPECT_EQ(scaler.scale(), 2) << "the row begins anew after a step left out";
  scaler.took_step();
  EXPECT_EQ(scaler.scale(), 4);
}

TEST(LossScaler, StaysWithinItsLimits) {
  LossScaler scaler({.initial = 2, .factor = 4, .interval = 1, .least = 1, .most = 5});
  scaler.took_step();
  EXPECT_EQ(scaler.scale(), 5);
  for (int i = 0; i < 2; ++i) scaler.left_out_step(i);
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_THROW(scaler.left_out_step(9), DivergedError);
}

TEST(LossScaler, ContinuesFromItsState) {
  LossScaler one({.initial = 8, .interval = 3}), other({.initial = 8, .interval = 3});
  one.left_out_step(1);
  one.took_step();
  for (auto& [name, tensor] : other.state()) tensor.copy_(one.state().at(name));
  for (int i = 0; i < 2; ++i) other.took_step();
  EXPECT_EQ(other.scale(), 8) << "one good step before, two after";
}

TEST(LossScaler, RejectsOptionsThatCannotWork) {
  EXPECT_THROW(LossScaler({.factor = 1}), InvalidArgument);
  EXPECT_THROW(LossScaler({.interval = 0}), InvalidArgument);
  EXPECT_THROW(LossScaler({.initial = 0.5}), InvalidArgument);
  EXPECT_THROW(LossScaler({.initial = 64, .most = 32}), InvalidArgument);
}

TEST(LossScaler, DecidesEquallyByDeviceAndHostNumbers) {
  const LossScalerOptions options{.initial = 8, .factor = 2, .interval = 2, .least = 2, .most = 16};
  LossScaler host(options), device(options);
  std::int64_t step = 0;
  for (const bool left_out : {false, true, false, false, false, false, false, false, true, true}) {
    ++step;
    left_out ? host.left_out_step(step) : host.took_step();
    device.decide(at::full({1}, left_out ? 1 : 0, at::kFloat));
    EXPECT_EQ(device.scale(), host.scale()) << "step " << step;
    EXPECT_TRUE(device.state().at("good_steps").equal(host.state().at("good_steps"))) << "step " << step;
  }
  EXPECT_EQ(host.scale(), 4);
  for (int i = 0; i < 3; ++i) device.decide(at::ones({1}));
  EXPECT_EQ(device.scale(), 2) << "its least";
}

}  // namespace
}  // namespace trireme::optim
