// Clipping in user-defined loops reads from a device once, for any number of parameters.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "tests/support/stand_in_device.h"
#include "trireme/comm/context.h"
#include "trireme/model/deferred.h"
#include "trireme/model/model.h"
#include "trireme/parallel/pipeline/pipeline.h"
#include "trireme/parallel/zero/fully_sharded_data_parallel.h"

namespace trireme::parallel {
namespace {

std::vector<model::Layer> six_layers(c10::Device device) {
  torch::nn::Sequential chain;
  for (int i = 0; i < 6; ++i) chain->push_back(torch::nn::Linear(4, 4));
  std::vector<model::Layer> layers = model::layers_of(chain);
  for (const model::Layer& layer : layers) model::move_to(layer, device);
  return layers;
}

std::int64_t reads_of(const std::function<void()>& clip) {
  const std::int64_t before = test::reads_from_stand_in();
  clip();
  return test::reads_from_stand_in() - before;
}

void on_the_device(const std::function<void(comm::Context&)>& run) {
  comm::run_ranks_as_threads(1, run, {.device = test::kStandInDevice});
}

TEST(ClippingReads, ADeviceOnceForShardedParameters) {
  on_the_device([](comm::Context& context) {
    FullyShardedDataParallel sharded(context, six_layers(context.device()), {});
    ASSERT_EQ(sharded.parameters().size(), 12U);
    const at::Tensor output = sharded.forward(at::ones({2, 4}).to(context.device()));
    output.sum().backward();
    EXPECT_EQ(reads_of([&] { sharded.clip_grad_norm(0.1); }), 1);
  });
}

TEST(ClippingReads, ADeviceOnceForAPipeline) {
  on_the_device([](comm::Context& context) {
    const at::Tensor input = at::ones({4, 4}).to(context.device());
    Pipeline pipe(context, six_layers(context.device()), {});
    pipe.step(input, input, [](const at::Tensor& output, const at::Tensor&) { return output.sum(); });
    EXPECT_EQ(reads_of([&] { pipe.clip_grad_norm(0.1); }), 1);
  });
}

}  // namespace
}  // namespace trireme::parallel
