#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/optim/optimizer.h"

namespace trireme::optim {
namespace {

at::Tensor with_gradient(double gradient) {
  at::Tensor tensor = at::zeros({2}).set_requires_grad(true);
  tensor.mutable_grad() = at::full({2}, gradient);
  return tensor;
}

double gradient_of(const at::Tensor& tensor) { return tensor.grad()[0].item<double>(); }

TEST(ClipGradNorm, ScalesGradientsToNormAndReturnsOld) {
  const at::Tensor a = with_gradient(3), b = with_gradient(4), none = at::zeros({2});
  EXPECT_FLOAT_EQ(clip_grad_norm({{"a", a}, {"b", b}, {"none", none}}, 1), std::sqrt(50.0F));
  EXPECT_NEAR(clip_grad_norm({{"a", a}, {"b", b}}, 1), 1, 1e-5);
  EXPECT_NEAR(gradient_of(a), 3 / std::sqrt(50), 1e-6);
}

TEST(ClipGradNorm, LeavesSmallGradientsAsTheyAre) {
  const at::Tensor a = with_gradient(0.25);
  EXPECT_FLOAT_EQ(clip_grad_norm({{"a", a}}, 1), 0.25F * std::sqrt(2.0F));
  EXPECT_EQ(gradient_of(a), 0.25);
  EXPECT_EQ(clip_grad_norm({}, 1), 0);
}

TEST(ClipGradNorm, ShowsNonFiniteNormWithoutSpreadingIt) {
  const at::Tensor a = with_gradient(2), b = with_gradient(std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(std::isnan(clip_grad_norm({{"a", a}, {"b", b}}, 1)));
  EXPECT_EQ(gradient_of(a), 2);
  EXPECT_THROW(clip_grad_norm({{"a", a}}, 0), InvalidArgument);
}

TEST(ClipGradNorm, HalfPrecisionNormExceedsItsRange) {
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    at::Tensor tensor = at::zeros({100000}, type).set_requires_grad(true);
    tensor.mutable_grad() = at::full({100000}, 300, at::TensorOptions(type));
    EXPECT_NEAR(clip_grad_norm({{"a", tensor}}, 1000), 300 * std::sqrt(1e5), 30) << type;
    EXPECT_NEAR(gradient_of(tensor), 1000 / std::sqrt(1e5), 0.02) << type;
  }
}

TEST(ClipGradNorm, NormIsFiniteWhereSquaresOverflow) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    at::Tensor a = at::zeros({4}, type).set_requires_grad(true);
    at::Tensor b = at::zeros({2}, type).set_requires_grad(true);
    a.mutable_grad() = at::full({4}, 1e25, at::TensorOptions(type));
    b.mutable_grad() = at::full({2}, 3, at::TensorOptions(type));
    EXPECT_NEAR(clip_grad_norm({{"a", a}, {"b", b}}, 1) / 2e25, 1, 4e-3) << type;
    EXPECT_NEAR(gradient_of(a), 0.5, 4e-3) << type;
  }
}

}  // namespace
}  // namespace trireme::optim
