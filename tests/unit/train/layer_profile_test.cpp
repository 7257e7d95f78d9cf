#include "trireme/train/estimate/layer_profile.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <c10/core/Allocator.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "trireme/parallel/allocated_bytes.h"

namespace trireme::train {
namespace {

TEST(AllocatedBytes, CountsCurrentAndPeakBytes) {
  const parallel::AllocatedBytes allocated;
  at::Tensor kept = at::ones({1000});
  EXPECT_EQ(allocated.current(), 4000);
  at::ones({5000});
  EXPECT_EQ(allocated.current(), 4000);
  EXPECT_EQ(allocated.peak(), 24000);
  kept.reset();
  EXPECT_EQ(allocated.current(), 0);
}

TEST(AllocatedBytes, IgnoreEarlierAllocations) {
  const parallel::AllocatedBytes allocated;
  const at::Tensor kept = at::ones({1000});
  // libtorch reports this for an address that was allocated under an earlier counter and now belongs to
  // another tensor.
  char before = 0;
  c10::reportMemoryUsageToProfiler(&before, -4000, 0, 0, c10::kCPU);
  EXPECT_EQ(allocated.current(), 4000);
}

TEST(LayerProfile, CountsLayerBytesAndTimesWithoutChange) {
  torch::nn::Sequential chain(torch::nn::Linear(64, 256), torch::nn::BatchNorm1d(256),
                              torch::nn::Dropout(0.5), torch::nn::Linear(256, 8));
  const std::vector<model::Layer> layers = model::layers_of(chain);
  torch::manual_seed(1);
  const at::Tensor expected = at::rand({4});
  torch::manual_seed(1);
  const at::Tensor mean = chain->named_buffers()["1.running_mean"].clone();

  const std::vector<plan::Layer> profile = profile_layers(layers, at::ones({32, 64}));

  ASSERT_EQ(profile.size(), 4U);
  EXPECT_EQ(profile[0].name, "0");
  EXPECT_EQ(profile[0].parameter_bytes, 4 * (64 * 256 + 256));
  EXPECT_EQ(profile[0].output_bytes, 4 * 32 * 256);
  EXPECT_GE(profile[0].activation_bytes, 4 * 32 * 256);
  EXPECT_EQ(profile[3].output_bytes, 4 * 32 * 8);
  for (const plan::Layer& layer : profile) {
    EXPECT_GT(layer.forward_s, 0) << layer.name;
    EXPECT_GT(layer.backward_s, 0) << layer.name;
  }
  EXPECT_TRUE(chain->named_buffers()["1.running_mean"].equal(mean)) << "statistics are as before";
  EXPECT_TRUE(at::rand({4}).equal(expected)) << "random numbers go on as before";
  for (const auto& parameter : chain->parameters()) EXPECT_FALSE(parameter.grad().defined());
}

TEST(LayerProfile, CountsPassingSkipsAmongOutputs) {
  torch::nn::Sequential chain(torch::nn::Linear(8, 4), torch::nn::Linear(4, 4), torch::nn::Linear(4, 2));
  std::vector<model::Layer> layers = model::layers_of(chain);
  layers[0].forward = [inner = layers[0].forward](const model::Tensors& x) {
    return model::Tensors{inner(x[0]), x[0]};
  };
  layers[0].gives = {"whole"};
  layers[2].forward = [inner = layers[2].forward](const model::Tensors& x) {
    return model::Tensors{inner(x[0]) + x[1].narrow(1, 0, 2)};
  };
  layers[2].takes = {"whole"};

  const std::vector<plan::Layer> profile = profile_layers(layers, at::ones({16, 8}));

  ASSERT_EQ(profile.size(), 3U);
  EXPECT_EQ(profile[0].output_bytes, 4 * 16 * (4 + 8));
  EXPECT_EQ(profile[1].output_bytes, 4 * 16 * (4 + 8));
  EXPECT_EQ(profile[2].output_bytes, 4 * 16 * 2);
  for (const plan::Layer& layer : profile) EXPECT_GT(layer.backward_s, 0) << layer.name;
}

}  // namespace
}  // namespace trireme::train
