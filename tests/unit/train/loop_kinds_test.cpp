// Checkpoints of user-defined loops over replicas, shards and pipelines. Each kind resumes from the others,
// with optimizers of torch::optim and of Trireme. One checkpoint can contain several models.
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "tests/support/temporary_folder.h"
#include "tests/unit/parallel/small_models.h"
#include "trireme/base/error.h"
#include "trireme/comm/launch_environment.h"
#include "trireme/parallel/data/distributed_data_parallel.h"
#include "trireme/parallel/pipeline/pipe.h"
#include "trireme/train/run/sharded_loop.h"

namespace trireme::train {
namespace {

using checkpoint::LoopCheckpoints;
using checkpoint::LoopModel;
using parallel::DistributedDataParallel;
using parallel::FullyShardedDataParallel;
using parallel::Pipeline;
using testing::HasSubstr;
using testing::ThrowsMessage;
namespace nn = torch::nn;

nn::Sequential small_net() {
  nn::Sequential net(nn::Linear(4, 5), nn::Tanh(), nn::Linear(5, 7), nn::Tanh(), nn::Linear(7, 3));
  test::fill_parameters(*net);
  return net;
}

at::Tensor mean_square(const at::Tensor& output, const at::Tensor& target) {
  return at::mse_loss(output, target);
}

/// Optimizers of named parameters, with a learning-rate schedule, and the function that saves them with a
/// model.
struct Updates {
  std::vector<std::unique_ptr<torch::optim::Optimizer>> of_torch = {};
  std::unique_ptr<optim::Optimizer> own = nullptr;
  std::unique_ptr<torch::optim::StepLR> schedule = nullptr;

  void step() {
    if (own) own->step();
    for (const auto& each : of_torch) each->step();
    if (schedule) schedule->step();
  }
  checkpoint::LoopOptions options() const {
    checkpoint::LoopOptions options;
    if (schedule) options.schedulers = {schedule.get()};
    return options;
  }
  /// `make` is one of the overloaded functions, of `whole`.
  template <class Make, class Whole>
  LoopModel model(Make&& make, Whole& whole) const {
    if (own) return make(whole, *own);
    std::vector<torch::optim::Optimizer*> optimizers;
    for (const auto& each : of_torch) optimizers.push_back(each.get());
    return make(whole, optimizers);
  }
};

using MakeUpdates = std::function<Updates(const optim::NamedTensors&)>;

/// One optimizer with two groups: weights, and biases with another rate.
Updates grouped_adamw(const optim::NamedTensors& parameters) {
  std::vector<at::Tensor> weights, biases;
  for (const auto& [name, parameter] : parameters)
    (name.ends_with("bias") ? biases : weights).push_back(parameter);
  const std::vector<torch::optim::OptimizerParamGroup> groups = {
      {weights, std::make_unique<torch::optim::AdamWOptions>(0.02)},
      {biases, std::make_unique<torch::optim::AdamWOptions>(0.05)}};
  Updates updates;
  updates.of_torch.push_back(std::make_unique<torch::optim::AdamW>(groups));
  updates.schedule = std::make_unique<torch::optim::StepLR>(*updates.of_torch[0], 3, 0.5);
  return updates;
}

/// One optimizer for weights, another one for biases.
Updates two_sgds(const optim::NamedTensors& parameters) {
  Updates updates;
  for (const bool of_biases : {false, true}) {
    std::vector<at::Tensor> some;
    for (const auto& [name, parameter] : parameters)
      if (name.ends_with("bias") == of_biases) some.push_back(parameter);
    updates.of_torch.push_back(std::make_unique<torch::optim::SGD>(
        some, torch::optim::SGDOptions(of_biases ? 0.05 : 0.1).momentum(0.9)));
  }
  return updates;
}

Updates own_adamw(const optim::NamedTensors& parameters) {
  return {.own = optim::make_optimizer({.name = "adamw", .lr = 0.02}, parameters)};
}

optim::NamedTensors named(const nn::Sequential& net) {
  optim::NamedTensors parameters;
  for (const auto& item : net->named_parameters()) parameters.emplace_back(item.key(), item.value());
  return parameters;
}

constexpr auto kReplicated = [](auto& whole, auto&& optimizer) {
  return checkpoint::replicated_loop(whole, optimizer);
};
constexpr auto kSharded = [](auto& whole, auto&& optimizer) { return sharded_loop(whole, optimizer); };
constexpr auto kStaged = [](auto& whole, auto&& optimizer) { return pipeline_loop(whole, optimizer); };

struct Row {
  const char* name;
  MakeUpdates make;
};

class LoopKinds : public testing::TestWithParam<Row> {
 protected:
  /// Runs updates `done` + 1 to `to`. Restores the checkpoint of `done` and saves the last one.
  using Steps = std::function<void(std::int64_t step, const at::Tensor& x, const at::Tensor& y)>;
  void train(comm::Context& context, const LoopModel& model, Updates& updates, std::int64_t to,
             const Steps& gradients) const {
    LoopCheckpoints checkpoints(context, folder_.path(), model, updates.options());
    for (std::int64_t step = checkpoints.restore() + 1; step <= to; ++step) {
      const at::Tensor x = test::numbers({12, 4}, static_cast<int>(step));
      gradients(step, x, x.sum(1, /*keepdim=*/true).sin().expand({12, 3}));
      updates.step();
    }
    checkpoints.save(to);
  }
  static at::Tensor part(const comm::Context& context, const at::Tensor& all) {
    return all.tensor_split(context.world_size())[static_cast<std::size_t>(context.rank())];
  }
  /// Returns the weights at the end.
  checkpoint::TensorMap replicas(int ranks, std::int64_t to) const {
    checkpoint::TensorMap weights;
    comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
      nn::Sequential net = small_net();
      DistributedDataParallel ddp(context, net.ptr());
      Updates updates = GetParam().make(named(net));
      train(context, updates.model(kReplicated, *net), updates, to,
            [&](std::int64_t, const at::Tensor& x, const at::Tensor& y) {
              ddp.zero_grad();
              mean_square(net->forward(part(context, x)), part(context, y)).backward();
            });
      if (!context.is_main()) return;
      for (const auto& [name, parameter] : named(net)) weights.emplace(name, parameter.detach().clone());
    });
    return weights;
  }
  void shards(int ranks, std::int64_t to) const {
    comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
      FullyShardedDataParallel sharded(context, model::layers_of(small_net()));
      Updates updates = GetParam().make(sharded.parameters());
      train(context, updates.model(kSharded, sharded), updates, to,
            [&](std::int64_t, const at::Tensor& x, const at::Tensor& y) {
              sharded.zero_grad();
              mean_square(at::Tensor(sharded.forward(part(context, x))), part(context, y)).backward();
            });
    });
  }
  void stages(int ranks, std::int64_t to) const {
    comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
      Pipeline pipe(context, model::layers_of(small_net()), {.schedule = "1f1b", .num_microbatches = 3});
      Updates updates = GetParam().make(pipe.parameters());
      train(context, updates.model(kStaged, pipe), updates, to,
            [&](std::int64_t, const at::Tensor& x, const at::Tensor& y) {
              pipe.zero_grad();
              pipe.step(x, y, mean_square);
            });
    });
  }
  test::TemporaryFolder folder_;
};

TEST_P(LoopKinds, ContinueFromEachOther) {
  const checkpoint::TensorMap expected = [&] {
    const test::TemporaryFolder apart;
    return replicas(1, 12);
  }();
  std::filesystem::remove_all(folder_.path());
  replicas(1, 2);
  shards(3, 4);
  stages(2, 6);
  replicas(2, 7);
  stages(3, 8);
  shards(2, 10);
  const checkpoint::TensorMap found = replicas(3, 12);
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected)
    EXPECT_TRUE(at::allclose(found.at(name), tensor, 1e-4, 1e-5)) << name << found.at(name) << tensor;
}

INSTANTIATE_TEST_SUITE_P(Optimizers, LoopKinds,
                         testing::Values(Row{"GroupedAdamW", grouped_adamw}, Row{"TwoSgds", two_sgds},
                                         Row{"OwnAdamW", own_adamw}),
                         [](const auto& row) { return row.param.name; });

class SeveralModels : public testing::Test {
 protected:
  /// A sharded critic and a replicated generator. Saves or restores them, and returns the sum of all weights.
  double sum(bool saves, const char* second_name = "generator") const {
    double sum = 0;
    comm::run_ranks_as_threads(2, [&](comm::Context& context) {
      nn::Sequential generator = small_net(), critic = small_net();
      DistributedDataParallel ddp(context, generator.ptr());
      FullyShardedDataParallel sharded(context, model::layers_of(critic));
      torch::optim::AdamW adam(generator->parameters(), torch::optim::AdamWOptions(0.1));
      const auto own = optim::make_optimizer({.name = "adam", .lr = 0.1}, sharded.parameters());
      LoopCheckpoints checkpoints(context, folder_.path(),
                                  {{"critic", sharded_loop(sharded, *own)},
                                   {second_name, checkpoint::replicated_loop(*generator, {&adam})}});
      if (saves) {
        const at::Tensor x = test::numbers({6, 4}, context.rank());
        generator->forward(x).square().mean().backward();
        at::Tensor(sharded.forward(x)).sin().mean().backward();
        adam.step();
        own->step();
        checkpoints.save(1);
      } else {
        EXPECT_EQ(checkpoints.restore(), 1);
        EXPECT_EQ(adam.state().size(), generator->parameters().size());
      }
      at::Tensor all = at::zeros({1}, at::kDouble);
      for (const auto& [name, piece] : sharded.parameters()) all += piece.detach().sum();
      context.world().all_reduce(all);
      for (const at::Tensor& parameter : generator->parameters()) all += parameter.detach().sum();
      if (context.is_main()) sum = all.item<double>();
    });
    return sum;
  }
  test::TemporaryFolder folder_;
};

TEST_F(SeveralModels, LieInOneCheckpoint) {
  const double saved = sum(true);
  EXPECT_EQ(sum(false), saved);
}

TEST_F(SeveralModels, OfOtherNamesAreRejected) {
  sum(true);
  EXPECT_THAT([&] { sum(false, "writer"); }, ThrowsMessage<DataError>(HasSubstr("'generator.0.bias'")));
}

TEST(PipesInCheckpoints, ContinueOnAnotherNumberOfRanks) {
  const test::TemporaryFolder folder;
  std::vector<double> losses;
  const auto train = [&](int ranks, std::int64_t begun, std::int64_t to) {
    comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
      parallel::Pipe pipe(context, small_net(), {.chunks = 2});
      torch::optim::AdamW adamw(pipe.parameters(), torch::optim::AdamWOptions(0.05));
      LoopCheckpoints checkpoints(context, folder.path(), pipeline_loop(pipe.pipeline(), {&adamw}));
      EXPECT_EQ(checkpoints.restore(), begun);
      for (std::int64_t step = begun + 1; step <= to; ++step) {
        const at::Tensor x = test::numbers({12, 4}, static_cast<int>(step));
        pipe.zero_grad();
        const double loss = pipe.step(x, x.narrow(1, 0, 3), mean_square);
        pipe.pipeline().clip_grad_norm(1);
        adamw.step();
        if (context.is_main()) losses.push_back(loss);
      }
      checkpoints.save(to);
    });
  };
  train(2, 0, 2);
  train(1, 2, 3);
  train(3, 3, 6);
  const std::vector<double> found = std::exchange(losses, {});
  std::filesystem::remove_all(folder.path());
  train(1, 0, 6);
  EXPECT_THAT(found, testing::Pointwise(testing::DoubleNear(1e-5), losses));
}

TEST(PipesInCheckpoints, PipeOverDevicesPointsToItsChain) {
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    const auto cpu = c10::Device(at::kCPU);
    parallel::Pipe pipe(context, small_net(), {.chunks = 2, .devices = {cpu, cpu}});
    EXPECT_THAT([&] { pipe.pipeline(); },
                ThrowsMessage<InvalidArgument>(HasSubstr("checkpoint::replicated_loop(*chain, ...)")));
  });
}

TEST(NamesOfModels, AreWords) {
  nn::Sequential net = small_net();
  for (const char* name : {"", "a.b", "0", "a/b"}) {
    EXPECT_THAT(
        [&] {
          checkpoint::LoopModels({{name, checkpoint::replicated_loop(*net)}});
        },
        ThrowsMessage<InvalidArgument>(HasSubstr("expected letters, digits and _")));
  }
  EXPECT_THAT(
      [&] {
        checkpoint::LoopModels(
            {{"a", checkpoint::replicated_loop(*net)}, {"a", checkpoint::replicated_loop(*net)}});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("two models to save are called 'a'")));
}

TEST(StagesThatAreUnderWay, CannotBeSaved) {
  const test::TemporaryFolder folder;
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    std::unique_ptr<optim::Optimizer> optimizer;
    Pipeline pipe(context, model::layers_of(small_net()),
                  {.schedule = "pipedream", .num_microbatches = 1, .update = [&] { optimizer->step(); }});
    optimizer = optim::make_optimizer({.name = "sgd", .lr = 0.1}, pipe.parameters());
    LoopCheckpoints checkpoints(context, folder.path(), pipeline_loop(pipe, *optimizer));
    const at::Tensor x = test::numbers({4, 4}, 1);
    pipe.start(
        {.num_updates = 6,
         .next = [&](int) { return parallel::MicroBatch{.input = x, .target = x.narrow(1, 0, 3)}; },
         .loss = [](const Fields& output, const Fields& target) { return mean_square(output, target); }});
    pipe.advance(1);
    EXPECT_THAT([&] { checkpoints.save(1); }, ThrowsMessage<InvalidArgument>(HasSubstr("under way")));
    for (int number = 2; number <= 6; ++number) pipe.advance(static_cast<std::uint64_t>(number));
    checkpoints.save(6);
    EXPECT_EQ(checkpoints.restore(), 6);
  });
}

}  // namespace
}  // namespace trireme::train
