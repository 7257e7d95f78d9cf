#include "trireme/parallel/data/gradient_squares.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/utils.h>

namespace trireme::parallel {
namespace {

at::Tensor weight(const std::vector<double>& values) {
  return at::tensor(values, at::kFloat).requires_grad_(true);
}

/// Adds `gradient` to the gradient of the weight.
void backward(const at::Tensor& weight, const std::vector<double>& gradient) {
  (weight * at::tensor(gradient, at::kFloat)).sum().backward();
}

TEST(GradientSquares, AreCountedPerPassDespiteSum) {
  const at::Tensor w = weight({1, 2}), v = weight({5});
  GradientSquares squares({{"w", w}, {"v", v}});
  squares.begin();
  backward(w, {3, 4});
  backward(w, {-3, -4});
  backward(v, {2});
  EXPECT_EQ(w.grad().abs().sum().item<double>(), 0);
  EXPECT_DOUBLE_EQ(squares.take().read(), 25 + 25 + 4);
}

TEST(GradientSquares, CountReusedWeightOncePerPass) {
  const at::Tensor w = weight({1});
  GradientSquares squares({{"w", w}, {"again", w}});
  squares.begin();
  (w * 2 + w * 3).sum().backward();
  EXPECT_DOUBLE_EQ(squares.take().read(), 25);
}

TEST(GradientSquares, IgnoreGradientsOutsideMeasurement) {
  const at::Tensor w = weight({1});
  GradientSquares squares({{"w", w}});
  backward(w, {3});
  squares.begin();
  backward(w, {2});
  EXPECT_DOUBLE_EQ(squares.take().read(), 4);
  backward(w, {3});
  squares.begin();
  EXPECT_DOUBLE_EQ(squares.take().read(), 0);
}

TEST(GradientSquares, LeaveNoHookAfter) {
  const at::Tensor w = weight({1});
  { const GradientSquares squares({{"w", w}}); }
  for (const auto& hook : *torch::autograd::impl::get_autograd_meta(w)->cpp_hooks_list_)
    EXPECT_FALSE(hook != nullptr);
  GradientSquares squares({{"w", w}});
  squares.begin();
  backward(w, {3});
  EXPECT_DOUBLE_EQ(squares.take().read(), 9);
}

TEST(GradientSquares, IgnoreRequestedButUnaddedGradients) {
  const at::Tensor w = weight({1});
  GradientSquares squares({{"w", w}});
  squares.begin();
  const at::Tensor loss = (w * 3).sum();
  const auto given = torch::autograd::grad({loss}, {w}, {}, /*retain_graph=*/true);
  EXPECT_EQ(given[0].item<double>(), 3);
  loss.backward();
  EXPECT_DOUBLE_EQ(squares.take().read(), 9);
}

TEST(SumOfSquares, IsRightForAnyKindOfTensor) {
  torch::manual_seed(3);
  const at::Tensor values = at::randn({37, 5, 9, 11});
  const double expected = values.to(at::kDouble).square().sum().item<double>();
  EXPECT_NEAR(sum_of_squares(values), expected, 1e-6 * expected);
  EXPECT_NEAR(sum_of_squares(values.to(at::MemoryFormat::ChannelsLast)), expected, 1e-6 * expected);
  EXPECT_NEAR(sum_of_squares(values.to(at::kBFloat16)), expected, 1e-2 * expected);
  const double of_part = values.narrow(1, 1, 2).to(at::kDouble).square().sum().item<double>();
  EXPECT_NEAR(sum_of_squares(values.narrow(1, 1, 2)), of_part, 1e-6 * of_part) << "not dense";
  EXPECT_EQ(sum_of_squares(at::ones({0})), 0);
  EXPECT_EQ(sum_of_squares(at::full({7}, 2.0)), 28);
}

TEST(SumOfSquares, HandlesSquaresBeyondF32Range) {
  EXPECT_NEAR(sum_of_squares(at::full({5000}, 1e25)) / 5e53, 1, 1e-6);
}

TEST(SumOfSquares, SparseGradientSumsDuplicates) {
  const at::Tensor sparse = at::sparse_coo_tensor(at::tensor({0, 2, 2}, at::kLong).unsqueeze(0),
                                                  at::tensor({1.0, 2.0, 3.0}, at::kFloat), {4});
  EXPECT_DOUBLE_EQ(sum_of_squares(sparse), 1 + 25);
}

}  // namespace
}  // namespace trireme::parallel
