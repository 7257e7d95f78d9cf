// The bits of an exact sum depend only on the number of micro-batches.

#include "trireme/parallel/data/exact_sum.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "trireme/comm/context.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using comm::run_ranks_as_threads;

/// Numbers of very different sizes, so that each order of additions gives other bits.
at::Tensor gradient_of(int microbatch) {
  const auto m = static_cast<float>(microbatch);
  return at::tensor({std::exp2(m) / 3, std::exp2(-m) / 7, 1 + m / 10, -1 / (m + 3)});
}

at::Tensor leaf() { return at::ones({4}).set_requires_grad(true); }

/// ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)).
at::Tensor sum_of_eight() {
  const auto pair = [](int m) { return gradient_of(m) + gradient_of(m + 1); };
  return (pair(0) + pair(2)) + (pair(4) + pair(6));
}

at::Tensor sum_over(int replicas, const std::vector<int>& order) {
  at::Tensor sum;
  run_ranks_as_threads(replicas, [&](Context& context) {
    const at::Tensor weight = leaf();
    ExactSum exact(context.world(), {{"weight", weight}});
    exact.begin();
    for (const int m : order) {
      weight.mutable_grad() = gradient_of(context.rank() * static_cast<int>(order.size()) + m);
      exact.add(m);
    }
    EXPECT_FALSE(weight.grad().defined());
    exact.finish();
    if (context.is_main()) sum = weight.grad();
  });
  return sum;
}

TEST(ExactSum, FollowsOneTreeInAnyOrder) {
  const at::Tensor expected = sum_of_eight();
  EXPECT_TRUE(at::equal(sum_over(1, {0, 1, 2, 3, 4, 5, 6, 7}), expected));
  EXPECT_TRUE(at::equal(sum_over(1, {7, 3, 0, 5, 1, 6, 2, 4}), expected));
  EXPECT_TRUE(at::equal(sum_over(2, {3, 1, 2, 0}), expected));
  EXPECT_TRUE(at::equal(sum_over(4, {0, 1}), expected));
  EXPECT_TRUE(at::equal(sum_over(8, {0}), expected));
}

TEST(ExactSum, ParametersReachedByNoneHaveNoGradient) {
  run_ranks_as_threads(2, [&](Context& context) {
    const at::Tensor on_one = leaf(), on_none = leaf(), frozen = at::ones({4});
    ExactSum exact(context.world(), {{"one", on_one}, {"none", on_none}, {"frozen", frozen}});
    exact.begin();
    for (int m = 0; m < 2; ++m) {
      if (context.rank() == 1 && m == 1) on_one.mutable_grad() = gradient_of(m);
      exact.add(m);
    }
    exact.finish();
    EXPECT_TRUE(at::equal(on_one.grad(), gradient_of(1)));
    EXPECT_FALSE(on_none.grad().defined());
    EXPECT_FALSE(frozen.grad().defined());
  });
}

TEST(ExactSum, AbandonedStepLeavesNothing) {
  const at::Tensor weight = leaf();
  ExactSum exact(std::nullopt, {{"weight", weight}});
  exact.begin();
  for (const int m : {0, 1, 2}) {
    weight.mutable_grad() = gradient_of(m + 4);
    exact.add(m);
  }
  exact.begin();
  for (const int m : {0, 1}) {
    weight.mutable_grad() = gradient_of(m);
    exact.add(m);
  }
  exact.finish();
  EXPECT_TRUE(at::equal(weight.grad(), gradient_of(0) + gradient_of(1)));
}

// Another stage that shares the leaf has finished before.
TEST(ExactSum, IsAddedToExistingGradient) {
  const at::Tensor weight = leaf();
  ExactSum exact(std::nullopt, {{"weight", weight}});
  exact.begin();
  weight.mutable_grad() = gradient_of(0);
  exact.add(0);
  weight.mutable_grad() = gradient_of(5);
  exact.finish();
  EXPECT_TRUE(at::equal(weight.grad(), gradient_of(0) + gradient_of(5)));
}

TEST(ExactSum, NumbersFormTreeOfAnyLength) {
  EXPECT_EQ(exact_sum({}), 0);
  const double a = 1e16, b = 1, c = -1e16, d = 1;
  EXPECT_EQ(exact_sum({a, b, c, d}), (a + b) + (c + d));
  EXPECT_EQ(exact_sum({a, b, c}), (a + b) + c);
}

}  // namespace
}  // namespace trireme::parallel
