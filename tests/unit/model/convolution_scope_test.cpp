#include "trireme/model/convolution_scope.h"

#include <ATen/Parallel.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/conv.h>

#include <thread>

namespace trireme::model {
namespace {

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

void expect_same(const Result& found, const Result& expected) {
  EXPECT_TRUE(found.output.equal(expected.output));
  EXPECT_TRUE(found.of_input.equal(expected.of_input));
  EXPECT_TRUE(found.of_weight.equal(expected.of_weight));
  EXPECT_TRUE(found.of_bias.equal(expected.of_bias));
}

class Convolutions : public testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }
  void TearDown() override { at::set_num_threads(threads_); }

  torch::nn::Conv2d small_{torch::nn::Conv2dOptions(512, 64, 1)};
  const at::Tensor input_ = at::rand({8, 512, 2, 2});

 private:
  const int threads_ = at::get_num_threads();
};

TEST_F(Convolutions, OfAScopeHaveTheNumbersOfAtenByAnotherWayInModulesThatDoNotKnowOfIt) {
  const Result before = run(small_, input_);
  Result within;
  {
    const ConvolutionScope scope(ConvolutionChoice::onednn());
    within = run(small_, input_);
    expect_same(run(small_, input_), within);
  }
  expect_close(within, before);
  EXPECT_FALSE(within.output.equal(before.output)) << "it still goes ATen's way";
}

TEST_F(Convolutions, BehindAScopeAreAtensBitByBit) {
  const Result before = run(small_, input_);
  { const ConvolutionScope scope(ConvolutionChoice::onednn()); }
  expect_same(run(small_, input_), before);
}

TEST_F(Convolutions, OfAnotherThreadDoNotSeeTheScope) {
  const Result before = run(small_, input_);
  const ConvolutionScope scope(ConvolutionChoice::onednn());
  Result elsewhere;
  std::thread([&] {
    at::set_num_threads(1);
    elsewhere = run(small_, input_);
  }).join();
  expect_same(elsewhere, before);
}

TEST_F(Convolutions, FollowTheInnerOfTwoScopesAndThenTheOuter) {
  const Result atens = run(small_, input_);
  const ConvolutionScope outer(ConvolutionChoice::onednn());
  const Result onednns = run(small_, input_);
  {
    const ConvolutionScope inner(ConvolutionChoice{});
    expect_same(run(small_, input_), atens);
  }
  expect_same(run(small_, input_), onednns);
}

TEST_F(Convolutions, ThatTheChoiceIsNotAboutAreAtensBitByBit) {
  torch::nn::Conv2d strided(torch::nn::Conv2dOptions(8, 16, 3).padding(1).stride(2));
  torch::nn::Conv2d grouped(torch::nn::Conv2dOptions(8, 8, 1).groups(2));
  torch::nn::Conv2d padded(torch::nn::Conv2dOptions(8, 8, 1).padding(1));
  const at::Tensor image = at::rand({3, 8, 5, 5});
  for (torch::nn::Conv2d convolution : {strided, grouped, padded}) {
    const Result before = run(convolution, image);
    const ConvolutionScope scope(ConvolutionChoice::onednn());
    expect_same(run(convolution, image), before);
  }
}

}  // namespace
}  // namespace trireme::model
