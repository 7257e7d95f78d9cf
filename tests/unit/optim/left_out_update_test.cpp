// Updates that a flag on the device skips change nothing. Other updates equal those of the host.
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/optim/moving_average.h"
#include "trireme/optim/optimizer.h"

namespace trireme::optim {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

struct Trained {
  NamedTensors parameters;
  std::unique_ptr<Optimizer> optimizer;
  ExponentialMovingAverage average;

  explicit Trained(const std::string& name)
      : parameters({{"w", at::ones({5}).requires_grad_()}, {"v", at::full({2, 3}, 0.5).requires_grad_()}}),
        optimizer(make_optimizer({.name = name, .lr = 0.1}, parameters)),
        average(parameters, 0.9) {}

  void set_gradients(double value) {
    for (auto& [name, parameter] : parameters)
      parameter.mutable_grad() = at::full_like(parameter.detach(), value);
  }
  std::vector<at::Tensor> everything() {
    std::vector<at::Tensor> all;
    for (const auto& [name, parameter] : parameters) all.push_back(parameter.detach());
    for (const auto& [name, tensor] : optimizer->state()) all.push_back(tensor);
    for (const auto& [name, tensor] : average.state()) all.push_back(tensor);
    return all;
  }
};

class LeftOutUpdate : public testing::TestWithParam<const char*> {};

TEST_P(LeftOutUpdate, ChangesNothingAndOthersMatchHost) {
  Trained host(GetParam()), device(GetParam());
  for (const double gradient : {0.5, std::numeric_limits<double>::infinity(), -0.25, 1.0}) {
    const bool is_finite = std::isfinite(gradient);
    host.set_gradients(gradient);
    if (is_finite) {
      host.optimizer->step();
      host.average.update();
    }
    device.set_gradients(gradient);
    const at::Tensor leave_out = at::full({}, is_finite ? 0 : 1, at::kFloat);
    ASSERT_TRUE(device.optimizer->can_leave_out());
    device.optimizer->step(leave_out);
    device.average.update(leave_out);
    const std::vector<at::Tensor> expected = host.everything(), found = device.everything();
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(found[i].equal(expected[i])) << gradient << " " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Of, LeftOutUpdate, testing::Values("sgd", "adam", "adamw"),
                         [](const auto& row) { return std::string(row.param); });

TEST(LeftOutUpdate, IsRejectedByOptimizersThatCannot) {
  Trained trained("lion");
  trained.set_gradients(1);
  EXPECT_FALSE(trained.optimizer->can_leave_out());
  EXPECT_THAT([&] { trained.optimizer->step(at::ones({})); },
              ThrowsMessage<InvalidArgument>(HasSubstr("can_leave_out() is false")));
}

}  // namespace
}  // namespace trireme::optim
