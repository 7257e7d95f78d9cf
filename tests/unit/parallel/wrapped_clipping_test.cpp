// Clipping by the norm of the whole model when each rank has a part of it: pipelines, with and without
// shards.
#include <ATen/ops/mse_loss.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <cmath>

#include "tests/unit/parallel/small_models.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/parallel/pipeline/pipeline.h"
#include "trireme/parallel/tensor/linear.h"
#include "trireme/parallel/zero/fully_sharded_data_parallel.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using testing::HasSubstr;
namespace nn = torch::nn;

nn::Sequential clipped_chain() {
  nn::Sequential net(nn::Linear(4, 8), nn::Tanh(), nn::Linear(8, 8), nn::Tanh(), nn::Linear(8, 4));
  test::fill_parameters(*net);
  return net;
}

/// The first and the last layer are the same.
std::vector<model::Layer> clipped_tied_layers() {
  const nn::Linear shared(4, 4);
  nn::Sequential net(shared, nn::Linear(4, 4), shared);
  test::fill_parameters(*net);
  return model::layers_of(net);
}

at::Tensor clipping_loss(const at::Tensor& y, const at::Tensor& t) { return at::mse_loss(y, t); }
at::Tensor clipping_input() { return 10 * test::numbers({12, 4}, 1); }
at::Tensor clipping_target() { return test::numbers({12, 4}, 2); }

double norm_of_gradients(const std::vector<at::Tensor>& parameters) {
  double squares = 0;
  for (const at::Tensor& each : parameters) squares += each.grad().square().sum().item<double>();
  return std::sqrt(squares);
}

TEST(PipelineClipping, IsByTheNormOfAllStages) {
  nn::Sequential whole = clipped_chain();
  clipping_loss(whole->forward(clipping_input()), clipping_target()).backward();
  const double expected = norm_of_gradients(whole->parameters());
  for (const int ranks : {1, 2, 3}) {
    comm::run_ranks_as_threads(ranks, [&](Context& context) {
      Pipeline pipe(context, model::layers_of(clipped_chain()));
      pipe.step(clipping_input(), clipping_target(), clipping_loss);
      EXPECT_NEAR(pipe.clip_grad_norm(0.1), expected, 1e-5 * expected);
      EXPECT_NEAR(pipe.clip_grad_norm(0.1), 0.1, 1e-5);
      EXPECT_THROW(pipe.clip_grad_norm(0), InvalidArgument);
    });
  }
}

TEST(PipelineClipping, CountsAParameterOfSeveralStagesOnce) {
  std::vector<double> found;
  for (const int ranks : {1, 3}) {
    double norm = 0;
    comm::run_ranks_as_threads(ranks, [&](Context& context) {
      Pipeline pipe(context, clipped_tied_layers());
      pipe.step(clipping_input(), clipping_target(), clipping_loss);
      const double mine = pipe.clip_grad_norm(0.1);
      EXPECT_NEAR(pipe.clip_grad_norm(0.1), 0.1, 1e-5);
      if (context.is_main()) norm = mine;
    });
    found.push_back(norm);
  }
  EXPECT_NEAR(found[0], found[1], 1e-5 * found[0]);
}

TEST(PipelineClipping, AddsUpThePiecesOfReplicas) {
  std::vector<double> found;
  for (const ZeroStage stage : {ZeroStage::kNone, ZeroStage::kOptimizer, ZeroStage::kParameters}) {
    double norm = 0;
    comm::run_ranks_as_threads(2, [&](Context& context) {
      Pipeline pipe(context, {.pipeline = context.self(), .data = context.world()},
                    model::layers_of(clipped_chain()),
                    {.data_parallel = {.scale = ReduceScale::kMean}, .zero = {.stage = stage}});
      pipe.step(clipping_input(), clipping_target(), clipping_loss);
      const double mine = pipe.clip_grad_norm(0.1);
      EXPECT_NEAR(pipe.clip_grad_norm(0.1), 0.1, 1e-5);
      if (context.is_main()) norm = mine;
    });
    found.push_back(norm);
  }
  EXPECT_NEAR(found[1], found[0], 1e-5 * found[0]);
  EXPECT_NEAR(found[2], found[0], 1e-5 * found[0]);
}

TEST(PipelineClipping, IsRejectedWithAsynchronousStages) {
  comm::run_ranks_as_threads(2, [](Context& context) {
    Pipeline pipe(context, model::layers_of(clipped_chain()),
                  {.schedule = "pipedream", .num_microbatches = 1});
    EXPECT_THAT([&] { pipe.clip_grad_norm(1); },
                testing::ThrowsMessage<InvalidArgument>(HasSubstr("on its own time")));
  });
}

/// Their norm also includes the other tensor-parallel ranks, which the wrapper cannot see.
TEST(ShardedClipping, IsRejectedForPartsOfParameters) {
  comm::run_ranks_as_threads(2, [](Context& context) {
    const ParallelLinearOptions sizes{.in = 4, .out = 4};
    const auto column = std::make_shared<ColumnParallelLinear>(context.world(), sizes);
    const auto row = std::make_shared<RowParallelLinear>(context.world(), sizes);
    nn::Module both;
    both.register_module("column", column);
    both.register_module("row", row);
    FullyShardedDataParallel sharded(
        context.self(),
        {model::make_layer(both, "column", {column}, [&](const at::Tensor& x) { return column->forward(x); }),
         model::make_layer(both, "row", {row}, [&](const at::Tensor& x) { return row->forward(x); })});
    clipping_loss(sharded.forward(clipping_input()), clipping_target()).backward();
    EXPECT_THAT([&] { sharded.clip_grad_norm(1); },
                testing::ThrowsMessage<InvalidArgument>(
                    AllOf(HasSubstr("parameter 'weight' of layer 'column'"),
                          HasSubstr("tensor parallelism, which a FullyShardedDataParallel does not know"))));
  });
}

TEST(ClipGradNorm, OneRankRejectsPipelineOrShardOptions) {
  comm::run_ranks_as_threads(2, [](Context& context) {
    const auto rejects = [](const optim::NamedTensors& parameters, const char* owner) {
      EXPECT_THAT([&] { optim::clip_grad_norm(parameters, 1); },
                  testing::ThrowsMessage<InvalidArgument>(
                      AllOf(HasSubstr(text("belongs to a ", owner)), HasSubstr("clip_grad_norm(max_norm)"))));
    };
    const nn::Sequential staged = clipped_chain(), cut = clipped_chain();
    optim::NamedTensors own;
    for (const auto& item : staged->named_parameters()) own.emplace_back(item.key(), item.value());
    {
      Pipeline pipe(context, model::layers_of(staged));
      rejects(pipe.parameters(), "Pipeline");
      rejects(own, "Pipeline");
    }
    EXPECT_EQ(optim::clip_grad_norm(own, 1), 0) << "the pipeline is gone";
    FullyShardedDataParallel sharded(context, model::layers_of(cut));
    rejects(sharded.parameters(), "FullyShardedDataParallel");
  });
}

}  // namespace
}  // namespace trireme::parallel
