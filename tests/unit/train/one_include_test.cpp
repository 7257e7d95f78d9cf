// trireme/trireme.h suffices for a program with its own loop. Three loops over the same layers and samples
// use only the short names. It is the first include, and the only one of Trireme.
#include <ATen/ops/mse_loss.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <filesystem>

#include "trireme/trireme.h"

namespace {

namespace nn = torch::nn;
using Losses = std::vector<double>;
constexpr int kSteps = 4;

nn::Sequential make_chain() {
  nn::Sequential chain(nn::Linear(6, 8), nn::Tanh(), nn::Linear(8, 3));
  const at::NoGradGuard no_grad;
  double value = 0;
  for (auto& parameter : chain->parameters())
    parameter.copy_(at::arange(parameter.numel()).add(value++).sin().view_as(parameter));
  return chain;
}

/// The batches of a rank: images of 2 x 3 pixels, and the class as three numbers.
struct Samples {
  explicit Samples(const trireme::Context& context, int ranks) {
    const trireme::StreamOptions options{
        .global_batch = 8, .rank = ranks == 1 ? 0 : context.rank(), .world_size = ranks};
    stream = source.train->open(options);
  }
  std::pair<at::Tensor, at::Tensor> next() {
    const trireme::StepBatch batch = stream->next();
    const trireme::Example& example = batch.microbatches.at(0);
    return {example.input->flatten(1).narrow(1, 300, 6).contiguous(),
            at::one_hot(*example.target, 10).narrow(1, 0, 3).to(at::kFloat)};
  }
  const trireme::DataSource source = trireme::open_data({.name = "synthetic"}, 1);
  std::unique_ptr<trireme::BatchStream> stream;
};

double mean_over_ranks(trireme::Context& context, const at::Tensor& loss) {
  at::Tensor mean = loss.detach().clone();
  context.world().all_reduce(mean, trireme::ReduceOp::kAverage);
  return mean.item<double>();
}

Losses with_replicas(trireme::Context& context) {
  Losses losses;
  nn::Sequential chain = make_chain();
  trireme::DistributedDataParallel ddp(context, chain.ptr());
  torch::optim::SGD optimizer(chain->parameters(), 0.1);
  Samples samples(context, context.world_size());
  trireme::Join join(ddp);
  for (int step = 0; join.next(step < kSteps); ++step) {
    const auto [x, y] = samples.next();
    const at::Tensor loss = at::mse_loss(chain->forward(x.to(context.device())), y);
    ddp.zero_grad();
    loss.backward();
    optimizer.step();
    losses.push_back(mean_over_ranks(context, loss));
  }
  return losses;
}

/// Saves after half of the steps. Another object resumes.
Losses with_shards(trireme::Context& context, const std::filesystem::path& folder) {
  Losses losses;
  for (const int until : {kSteps / 2, kSteps}) {
    trireme::FullyShardedDataParallel sharded = trireme::fully_shard(context, make_chain());
    const std::unique_ptr<trireme::Optimizer> optimizer =
        trireme::make_optimizer({.name = "sgd", .lr = 0.1}, sharded.parameters());
    const auto rate = trireme::make_learning_rate({.schedule = "constant"}, 0.1, kSteps);
    trireme::LoopCheckpoints checkpoints(context, folder, trireme::sharded_loop(sharded, *optimizer));
    Samples samples(context, context.world_size());
    const std::int64_t done = checkpoints.restore();
    samples.stream->seek(static_cast<std::uint64_t>(done));
    for (std::int64_t step = done + 1; step <= until; ++step) {
      const auto [x, y] = samples.next();
      const at::Tensor loss = at::mse_loss(*sharded.forward(x), y);
      sharded.zero_grad();
      loss.backward();
      optimizer->set_lr(rate->at(step));
      optimizer->step();
      losses.push_back(mean_over_ranks(context, loss));
    }
    checkpoints.save(until);
  }
  return losses;
}

/// Every layer is checkpointed. Each rank reads the whole batch.
Losses with_stages(trireme::Context& context) {
  Losses losses;
  const nn::Sequential chain = make_chain();
  std::vector<trireme::Layer> layers;
  for (trireme::Layer& layer : trireme::layers_of(chain))
    layers.push_back(trireme::checkpointed(std::move(layer)));
  trireme::Pipeline pipe(context, layers, {.schedule = "gpipe", .num_microbatches = 2});
  const auto optimizer = trireme::make_optimizer({.name = "sgd", .lr = 0.1}, pipe.parameters());
  Samples samples(context, 1);
  for (int step = 0; step < kSteps; ++step) {
    const auto [x, y] = samples.next();
    pipe.zero_grad();
    losses.push_back(pipe.step(x, y, [](const at::Tensor& output, const at::Tensor& target) {
      return at::mse_loss(output, target);
    }));
    optimizer->step();
  }
  return losses;
}

TEST(OneInclude, SufficesForThreeKindsOfTraining) {
  std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "one_include";
  std::filesystem::remove_all(folder);
  std::array<std::array<Losses, 3>, 2> found;
  trireme::run_ranks_as_threads(2, [&](trireme::Context& context) {
    found.at(static_cast<std::size_t>(context.rank())) = {with_replicas(context),
                                                          with_shards(context, folder), with_stages(context)};
  });
  std::filesystem::remove_all(folder);
  for (const auto& losses : found) {
    ASSERT_EQ(losses[0].size(), static_cast<std::size_t>(kSteps));
    EXPECT_LT(losses[0].back(), losses[0].front());
    EXPECT_THAT(losses[1], testing::Pointwise(testing::FloatNear(1e-5F), losses[0]));
    EXPECT_THAT(losses[2], testing::Pointwise(testing::FloatNear(1e-5F), losses[0]));
  }
}

TEST(OneInclude, HasMixedPrecisionMeshesAndAverages) {
  trireme::run_ranks_as_threads(2, [](trireme::Context& context) {
    trireme::Mesh mesh(context, {{"dp", 2}});
    at::Tensor sum = at::ones({1});
    trireme::Pending pending = mesh.group("dp").all_reduce_async(sum);
    pending.wait();
    EXPECT_EQ(sum.item<double>(), 2);

    nn::Sequential chain = make_chain();
    trireme::NamedTensors parameters;
    for (const auto& each : chain->named_parameters()) parameters.emplace_back(each.key(), each.value());
    trireme::LossScaler scaler({});
    trireme::ExponentialMovingAverage average(parameters, 0.5);
    {
      const trireme::PrecisionScope autocast(trireme::precision_of("bf16"), context.device().type());
      const at::Tensor output = chain->forward(at::ones({2, 6}));
      EXPECT_EQ(output.scalar_type(), at::kBFloat16);
      (output.to(at::kFloat).sum() * scaler.scale()).backward();
    }
    EXPECT_TRUE(scaler.unscale(parameters));
    EXPECT_GT(trireme::clip_grad_norm(parameters, 1.0), 1.0);
    EXPECT_NEAR(trireme::clip_grad_norm(parameters, 1.0), 1.0, 1e-3);
    average.update();

    const std::shared_ptr<trireme::Model> model =
        trireme::model::make_model({.name = "mlp", .hidden = {4}}, {6}, 3, /*seed=*/1);
    const at::Tensor expected = model->forward(at::ones({2, 6}));
    trireme::FullyShardedDataParallel sharded = trireme::fully_shard(context, *model);
    EXPECT_TRUE(at::allclose(*sharded.forward(at::ones({2, 6})), expected));
    EXPECT_GT(sharded.parameters().size(), 0U);
  });
}

/// Names that the loops above do not use.
TEST(OneInclude, HasTheOtherNamesOfGuides) {
  EXPECT_EQ(trireme::deferred([] { return at::zeros({3}); }).device().type(), c10::DeviceType::Meta);
  static_assert(std::is_class_v<trireme::GraphedStep> && std::is_class_v<trireme::ActivationStore> &&
                std::is_class_v<trireme::Offload> && std::is_class_v<trireme::HookStateCopy> &&
                std::is_class_v<trireme::ProducedSamples> && std::is_class_v<trireme::DeviceNumbers>);
  static_assert(std::is_base_of_v<torch::nn::Module, trireme::Model>);
  const trireme::FullyShardedOptions sharded{.zero = {.stage = trireme::ZeroStage::kGradients}};
  EXPECT_EQ(sharded.zero.stage, trireme::ZeroStage::kGradients);
  EXPECT_NE(trireme::make_comm_hook("bf16"), nullptr);
  EXPECT_NE(trireme::UnusedParameters::kFind, trireme::UnusedParameters::kStatic);
}

}  // namespace
