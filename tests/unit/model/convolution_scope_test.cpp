#include "trireme/model/convolution_scope.h"

#include <ATen/Parallel.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/rand.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace trireme::model {
namespace {

constexpr auto kLast = at::MemoryFormat::ChannelsLast;

struct Result {
  at::Tensor output, of_input, of_weight, of_bias;
};

Result run(torch::nn::Conv2d& convolution, const at::Tensor& input) {
  const at::Tensor leaf = input.detach().requires_grad_();
  const at::Tensor output = convolution->forward(leaf);
  // Not all ones, so that gradients depend on the position.
  const auto gradients =
      torch::autograd::grad({(output * output).sum()}, {leaf, convolution->weight, convolution->bias});
  return {output, gradients[0], gradients[1], gradients[2]};
}

/// The method of a convolution affects its last bits. A sum of 512 f32 products is accurate to about 1e-5.
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

TEST_F(Convolutions, ScopeMatchesAtenInUnmodifiedModules) {
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

TEST_F(Convolutions, MatchAtenBitwiseAfterScope) {
  const Result before = run(small_, input_);
  { const ConvolutionScope scope(ConvolutionChoice::onednn()); }
  expect_same(run(small_, input_), before);
}

TEST_F(Convolutions, OtherThreadsDoNotSeeScope) {
  const Result before = run(small_, input_);
  const ConvolutionScope scope(ConvolutionChoice::onednn());
  Result elsewhere;
  std::thread([&] {
    at::set_num_threads(1);
    elsewhere = run(small_, input_);
  }).join();
  expect_same(elsewhere, before);
}

TEST_F(Convolutions, FollowInnerScopeThenOuter) {
  const Result atens = run(small_, input_);
  const ConvolutionScope outer(ConvolutionChoice::onednn());
  const Result onednns = run(small_, input_);
  {
    const ConvolutionScope inner(ConvolutionChoice{});
    expect_same(run(small_, input_), atens);
  }
  expect_same(run(small_, input_), onednns);
}

TEST_F(Convolutions, UnlistedShapesMatchAtenBitwise) {
  torch::nn::Conv2d dilated(torch::nn::Conv2dOptions(8, 16, 3).dilation(2));
  torch::nn::Conv2d grouped(torch::nn::Conv2dOptions(8, 8, 1).groups(2));
  const at::Tensor image = at::rand({3, 8, 5, 5});
  ConvolutionChoice product = ConvolutionChoice::product();
  product.channels_last = false;
  for (torch::nn::Conv2d convolution : {dilated, grouped}) {
    const Result before = run(convolution, image);
    const ConvolutionScope scope(product);
    expect_same(run(convolution, image), before);
  }
}

struct Geometry {
  const char* what;
  std::int64_t in, out;
  std::vector<std::int64_t> kernel, stride, padding;
  std::vector<std::int64_t> input;  ///< batch, height, width
};

void PrintTo(const Geometry& geometry, std::ostream* out) { *out << geometry.what; }

class Products : public testing::TestWithParam<Geometry> {};

TEST_P(Products, MatchAtenForwardAndBackward) {
  const auto& [what, in, out, kernel, stride, padding, size] = GetParam();
  torch::nn::Conv2d convolution(torch::nn::Conv2dOptions(in, out, {kernel[0], kernel[1]})
                                    .stride({stride[0], stride[1]})
                                    .padding(torch::ExpandingArray<2>({padding[0], padding[1]})));
  const at::Tensor input = at::rand({size[0], in, size[1], size[2]}) - 0.5;
  const Result atens = run(convolution, input);
  const ConvolutionScope scope(ConvolutionChoice::product());
  const Result product = run(convolution, input);
  expect_close(product, atens);
  EXPECT_TRUE(product.output.is_contiguous(kLast));
  expect_same(run(convolution, input.contiguous(kLast)), product);
}

// The order of patches in memory depends on whether the output has more positions than channels.
INSTANTIATE_TEST_SUITE_P(
    OfEveryGeometry, Products,
    testing::Values(Geometry{"1x1", 7, 5, {1, 1}, {1, 1}, {0, 0}, {3, 4, 5}},
                    Geometry{"3x3 with few places", 5, 64, {3, 3}, {1, 1}, {1, 1}, {2, 2, 2}},
                    Geometry{"3x3 with many places", 5, 4, {3, 3}, {1, 1}, {1, 1}, {2, 9, 8}},
                    Geometry{"3x3 with stride", 6, 32, {3, 3}, {2, 2}, {1, 1}, {2, 5, 4}},
                    Geometry{"1x1 with stride", 6, 4, {1, 1}, {2, 2}, {0, 0}, {2, 5, 5}},
                    Geometry{"1x1 with padding", 3, 4, {1, 1}, {1, 1}, {1, 1}, {2, 3, 3}},
                    Geometry{"7x7 with stride", 3, 8, {7, 7}, {2, 2}, {3, 3}, {2, 12, 12}},
                    Geometry{"no two numbers alike", 3, 50, {1, 3}, {2, 1}, {0, 2}, {2, 5, 4}},
                    Geometry{"pixels that no patch has", 4, 4, {2, 2}, {3, 3}, {0, 0}, {2, 7, 8}}));

/// ATen's error message for an invalid convolution. "" if there is none.
std::string complaint_of(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  try {
    at::convolution(input, weight, bias, {1, 1}, {0, 0}, {1, 1}, false, {0, 0}, 1);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST_F(Convolutions, RejectsInvalidOnesInWordsOfAten) {
  const at::Tensor weight = at::rand({3, 4, 3, 3}), bias = at::rand({3});
  const std::vector<std::vector<at::Tensor>> wrong{{at::rand({2, 2, 5, 5}), weight, bias},  // few channels
                                                   {at::rand({2, 8, 5, 5}), weight, bias},  // many
                                                   {at::rand({2, 4, 2, 2}), weight, bias},  // small
                                                   {at::rand({2, 4, 5, 5}), weight, at::rand({1})}};
  for (const auto& each : wrong) {
    const std::string atens = complaint_of(each[0], each[1], each[2]);
    ASSERT_NE(atens, "") << each[0].sizes();
    const ConvolutionScope scope(ConvolutionChoice::product());
    EXPECT_EQ(complaint_of(each[0], each[1], each[2]), atens) << each[0].sizes();
  }
}

TEST_F(Convolutions, UseSeparateKernelForEachPass) {
  const ConvolutionShape shape{.in = 512, .out = 64, .height = 2, .width = 2};
  const auto with = [&](PassKernels kernels) {
    const ConvolutionScope scope({.channels_last = true, .kernels = {{shape, kernels}}});
    return run(small_, input_);
  };
  constexpr auto kOnednn = ConvolutionKernel::kOnednn, kProduct = ConvolutionKernel::kProduct;
  const Result product = with(PassKernels::all(kProduct)), onednn = with(PassKernels::all(kOnednn));
  ASSERT_FALSE(product.of_weight.equal(onednn.of_weight)) << "both went the same way";
  const Result mixed = with({.forward = kProduct, .of_input = kProduct, .of_weight = kOnednn});
  EXPECT_TRUE(mixed.output.equal(product.output));
  EXPECT_TRUE(mixed.of_input.equal(product.of_input));
  EXPECT_FALSE(mixed.of_weight.equal(product.of_weight));
  expect_close(mixed, onednn);
}

TEST_F(Convolutions, ChannelsLastChoiceSetsLaterLayout) {
  torch::nn::Conv2d strided(torch::nn::Conv2dOptions(512, 64, 1).stride(2));
  torch::nn::BatchNorm2d norm(64);
  const at::Tensor image = at::rand({2, 512, 6, 6});
  const ConvolutionScope scope(ConvolutionChoice{.channels_last = true});
  const at::Tensor after = norm->forward(strided->forward(image)).relu();
  EXPECT_TRUE(after.is_contiguous(kLast));
  EXPECT_FALSE(after.is_contiguous());
  EXPECT_TRUE(strided->weight.is_contiguous()) << "weights lie as they are";
}

TEST_F(Convolutions, AreRecordedInOrderWithoutChanges) {
  torch::nn::Conv2d second(
      torch::nn::Conv2dOptions(64, 3, {1, 2}).padding(torch::ExpandingArray<2>({0, 1})).stride({1, 2}));
  torch::nn::Conv2d grouped(torch::nn::Conv2dOptions(512, 8, 1).groups(2));
  const at::Tensor expected = small_->forward(input_);
  at::Tensor found;
  const auto shapes = convolutions_in([&] {
    found = small_->forward(input_);
    second->forward(found);
    grouped->forward(input_);
    small_->forward(input_);
  });
  const ConvolutionShape first{.in = 512, .out = 64, .height = 2, .width = 2};
  EXPECT_THAT(shapes, testing::ElementsAre(first,
                                           ConvolutionShape{.in = 64,
                                                            .out = 3,
                                                            .height = 2,
                                                            .width = 2,
                                                            .kernel = {1, 2},
                                                            .stride = {1, 2},
                                                            .padding = {0, 1}},
                                           first));
  EXPECT_TRUE(found.equal(expected));
}

TEST_F(Convolutions, OuterScopeRecordsAfterThrowingForward) {
  const auto shapes = convolutions_in([&] {
    EXPECT_THROW(convolutions_in([] { throw std::runtime_error("in the middle"); }), std::runtime_error);
    small_->forward(input_);
  });
  EXPECT_EQ(shapes.size(), 1u);
}

}  // namespace
}  // namespace trireme::model
