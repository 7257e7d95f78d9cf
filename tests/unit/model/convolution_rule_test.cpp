#include "trireme/model/convolution_rule.h"

#include <ATen/Parallel.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/conv.h>

namespace trireme::model {
namespace {

ConvolutionShape one_by_one(std::int64_t batch, std::int64_t side) {
  return {.batch = batch, .height = side, .width = side, .kernel_height = 1, .kernel_width = 1};
}

TEST(ConvolutionRule, TakesSmallPlanesOfSmallBatchesOnOneThread) {
  EXPECT_TRUE(prefers_onednn(one_by_one(1, 2)));
  EXPECT_TRUE(prefers_onednn(one_by_one(15, 2)));
  EXPECT_TRUE(prefers_onednn(one_by_one(4, 7)));
  EXPECT_FALSE(prefers_onednn(one_by_one(3, 7)));
  EXPECT_FALSE(prefers_onednn(one_by_one(8, 1)));
  EXPECT_FALSE(prefers_onednn(one_by_one(8, 8)));
}

TEST(ConvolutionRule, LeavesToAtenWhereThatTakesOnednnItself) {
  ConvolutionShape shape = one_by_one(16, 2);
  EXPECT_FALSE(prefers_onednn(shape));
  shape = one_by_one(8, 2);
  shape.threads = 2;
  EXPECT_FALSE(prefers_onednn(shape));
  shape = one_by_one(8, 2);
  shape.kernel_width = 3;
  EXPECT_FALSE(prefers_onednn(shape));
  shape = one_by_one(8, 2);
  shape.stride = 2;
  EXPECT_FALSE(prefers_onednn(shape));
}

struct Result {
  at::Tensor output, of_input, of_weight, of_bias;
};

Result run(torch::nn::Conv2d& convolution, const at::Tensor& input) {
  const at::Tensor leaf = input.detach().requires_grad_();
  const at::Tensor output = convolution->forward(leaf);
  // Not all ones: the gradient of the weight shall depend on the place.
  const auto gradients =
      torch::autograd::grad({(output * output).sum()}, {leaf, convolution->weight, convolution->bias});
  return {output, gradients[0], gradients[1], gradients[2]};
}

/// Which way a convolution goes shows in its last bits; a sum of 512 f32 products is right to about 1e-5.
void expect_close(const Result& found, const Result& expected) {
  EXPECT_TRUE(found.output.allclose(expected.output, 1e-4, 1e-5));
  EXPECT_TRUE(found.of_input.allclose(expected.of_input, 1e-4, 1e-4));
  EXPECT_TRUE(found.of_weight.allclose(expected.of_weight, 1e-4, 1e-3));
  EXPECT_TRUE(found.of_bias.allclose(expected.of_bias, 1e-4, 1e-3));
}

// In one test, as the rule stays for the life of the process.
TEST(ConvolutionRule, GivesTheNumbersOfAtenByAnotherWayInModulesThatDoNotKnowOfIt) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  torch::nn::Conv2d changed(torch::nn::Conv2dOptions(512, 64, 1));
  torch::nn::Conv2d unchanged(torch::nn::Conv2dOptions(8, 16, 3).padding(1).stride(2));
  torch::nn::Conv2d grouped(torch::nn::Conv2dOptions(8, 8, 1).groups(2));
  const at::Tensor small = at::rand({8, 512, 2, 2}), image = at::rand({3, 8, 9, 9});
  const Result changed_before = run(changed, small), unchanged_before = run(unchanged, image),
               grouped_before = run(grouped, image);
  ASSERT_TRUE(follow_convolution_rule());
  ASSERT_TRUE(follow_convolution_rule()) << "twice is once";
  const Result changed_after = run(changed, small), unchanged_after = run(unchanged, image),
               grouped_after = run(grouped, image);
  expect_close(changed_after, changed_before);
  EXPECT_FALSE(changed_after.output.equal(changed_before.output)) << "it still goes ATen's way";
  EXPECT_TRUE(unchanged_after.output.equal(unchanged_before.output));
  EXPECT_TRUE(unchanged_after.of_weight.equal(unchanged_before.of_weight));
  EXPECT_TRUE(grouped_after.of_weight.equal(grouped_before.of_weight));
  EXPECT_TRUE(run(changed, small).of_weight.equal(changed_after.of_weight)) << "not the same bits again";
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace trireme::model
