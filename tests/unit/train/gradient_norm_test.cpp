#include "trireme/train/parts/gradient_norm.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "trireme/comm/context.h"

namespace trireme::train {
namespace {

/// A parameter whose gradient has this 2-norm.
at::Tensor with_norm(double norm) {
  at::Tensor parameter = at::zeros({4}).requires_grad_(true);
  parameter.mutable_grad() = at::full({4}, norm / 2);
  return parameter;
}

const std::vector<std::string> kNames = {"a", "b", "c"};

TEST(GradientNorm, IsThatOfAllGradientsTogether) {
  comm::run_ranks_as_threads(1, [](comm::Context& context) {
    GradientNorm norm(context.self(), {{"a", with_norm(3)}, {"b", with_norm(4)}, {"c", at::zeros({4})}},
                      kNames);
    EXPECT_DOUBLE_EQ(norm.measure().item<double>(), 5) << "one that is not defined counts as zero";
  });
}

TEST(GradientNorm, IsEqualOnRanksForAnyCut) {
  const double whole = std::sqrt(1.0 + 4 + 9);
  comm::run_ranks_as_threads(3, [&](comm::Context& context) {
    const std::size_t mine = static_cast<std::size_t>(context.rank());
    GradientNorm norm(context.world(), {{kNames[mine], with_norm(1 + context.rank())}}, kNames);
    EXPECT_FLOAT_EQ(static_cast<float>(norm.measure().item<double>()), static_cast<float>(whole));
  });
}

TEST(GradientNorm, NormIsFiniteWhereSquaresOverflow) {
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const std::size_t mine = static_cast<std::size_t>(context.rank());
    GradientNorm norm(context.world(), {{kNames[mine], with_norm(mine == 0 ? 3e25 : 4e25)}}, kNames);
    EXPECT_NEAR(norm.measure().item<double>() / 5e25, 1, 1e-6);
  });
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    at::Tensor half = at::zeros({100000}, at::kHalf).requires_grad_(true);
    half.mutable_grad() = at::full({100000}, 300, at::kHalf);
    GradientNorm norm(context.self(), {{"a", half}}, kNames);
    EXPECT_NEAR(norm.measure().item<double>(), 300 * std::sqrt(1e5), 30);
  });
}

TEST(GradientNorm, CountsAParameterThatStagesShareOnce) {
  comm::run_ranks_as_threads(2, [](comm::Context& context) {
    optim::NamedTensors mine = {{"a", with_norm(3)}};
    if (context.rank() == 1) mine.emplace_back("b", with_norm(4));
    GradientNorm norm(context.world(), mine, kNames);
    EXPECT_DOUBLE_EQ(norm.measure().item<double>(), 5);
  });
}

TEST(GradientNorm, FollowsGradientsOfCurrentStep) {
  comm::run_ranks_as_threads(1, [](comm::Context& context) {
    const at::Tensor parameter = with_norm(3);
    GradientNorm norm(context.self(), {{"a", parameter}}, kNames);
    EXPECT_DOUBLE_EQ(norm.measure().item<double>(), 3);
    parameter.mutable_grad() = at::full({4}, 4.0);
    EXPECT_DOUBLE_EQ(norm.measure().item<double>(), 8);
    parameter.mutable_grad() = at::full({4}, INFINITY);
    EXPECT_TRUE(std::isinf(norm.measure().item<double>()));
  });
}

}  // namespace
}  // namespace trireme::train
