#include "trireme/checkpoint/loop_checkpoints.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/polar.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <fstream>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/comm/launch_environment.h"
#include "trireme/optim/wrapped_parameter.h"

namespace trireme::checkpoint {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
namespace nn = torch::nn;
namespace optim = torch::optim;

using MakeOptimizer = std::unique_ptr<optim::Optimizer> (*)(const std::vector<at::Tensor>&);

template <class Optimizer, class Options>
std::unique_ptr<optim::Optimizer> make(const std::vector<at::Tensor>& parameters, const Options& options) {
  return std::make_unique<Optimizer>(parameters, options);
}

std::unique_ptr<optim::Optimizer> adamw(const std::vector<at::Tensor>& of) {
  return make<optim::AdamW>(of, optim::AdamWOptions(0.01));
}

/// A network, its optimizer, and the generator of its samples.
struct Loop {
  explicit Loop(MakeOptimizer make_optimizer = adamw, int width = 5, std::uint64_t seed = 7)
      : net(nn::Linear(4, width), nn::BatchNorm1d(width), nn::Linear(width, 1)),
        optimizer(make_optimizer(net->parameters())),
        generator(at::detail::createCPUGenerator(seed)) {}
  void train(int steps) {
    for (int i = 0; i < steps; ++i) {
      const at::Tensor x = at::randn({8, 4}, generator);
      optimizer->zero_grad();
      at::mse_loss(net->forward(x), x.sum(1, /*keepdim=*/true)).backward();
      optimizer->step();
    }
  }
  LoopModels models() { return {*net, {optimizer.get()}}; }
  LoopOptions options() { return {.generators = {generator}}; }
  nn::Sequential net;
  std::unique_ptr<optim::Optimizer> optimizer;
  at::Generator generator;
};

void expect_same(const TensorMap& a, const TensorMap& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
}

class LoopCheckpointsTest : public testing::Test {
 protected:
  void on_ranks(int ranks, const std::function<void(comm::Context&, LoopCheckpoints&, Loop&)>& body,
                MakeOptimizer make_optimizer = adamw, int width = 5) {
    comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
      Loop loop(make_optimizer, width, /*seed=*/7);
      LoopCheckpoints checkpoints(context, folder_.path(), loop.models(), loop.options());
      body(context, checkpoints, loop);
    });
  }
  test::TemporaryFolder folder_;
};

class StateOfOptimizer : public testing::TestWithParam<std::pair<const char*, MakeOptimizer>> {};

TEST_P(StateOfOptimizer, ContinuesWithTheSameBits) {
  Loop first(GetParam().second);
  first.train(3);
  TensorMap weights, kept;
  for (const auto& [name, tensor] : state_of(*first.net)) weights.emplace(name, tensor.clone());
  for (const auto& [name, tensor] : state_of(*first.net, *first.optimizer))
    kept.emplace(name, tensor.clone());
  const at::Tensor drawn = state_of(first.generator);
  first.train(3);
  Loop second(GetParam().second);
  restore(*second.net, weights);
  restore(*second.net, *second.optimizer, kept);
  restore(second.generator, drawn);
  second.train(3);
  expect_same(state_of(*first.net), state_of(*second.net));
  expect_same(state_of(*first.net, *first.optimizer), state_of(*second.net, *second.optimizer));
}

INSTANTIATE_TEST_SUITE_P(
    Types, StateOfOptimizer,
    testing::Values(
        std::pair<const char*, MakeOptimizer>("sgd",
                                              [](const std::vector<at::Tensor>& of) {
                                                return make<optim::SGD>(of,
                                                                        optim::SGDOptions(0.1).momentum(0.9));
                                              }),
        std::pair<const char*, MakeOptimizer>("adam",
                                              [](const std::vector<at::Tensor>& of) {
                                                return make<optim::Adam>(
                                                    of, optim::AdamOptions(0.01).amsgrad(true));
                                              }),
        std::pair<const char*, MakeOptimizer>("adamw", adamw),
        std::pair<const char*, MakeOptimizer>("rmsprop",
                                              [](const std::vector<at::Tensor>& of) {
                                                return make<optim::RMSprop>(
                                                    of,
                                                    optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
                                              }),
        std::pair<const char*, MakeOptimizer>("adagrad",
                                              [](const std::vector<at::Tensor>& of) {
                                                return make<optim::Adagrad>(of, optim::AdagradOptions(0.1));
                                              })),
    [](const auto& row) { return row.param.first; });

TEST_F(LoopCheckpointsTest, RanksContinueWithTheirGeneratorsAndBits) {
  constexpr int kRanks = 2;
  std::vector<TensorMap> weights(kRanks), state(kRanks);
  const auto remember = [&](comm::Context& context, Loop& loop) {
    const auto rank = static_cast<std::size_t>(context.rank());
    weights[rank] = state_of(*loop.net);
    state[rank] = state_of(*loop.net, *loop.optimizer);
  };
  on_ranks(kRanks, [&](comm::Context& context, LoopCheckpoints& checkpoints, Loop& loop) {
    EXPECT_EQ(checkpoints.restore(), 0);
    for (auto& [name, tensor] : state_of(*loop.net)) context.world().broadcast(tensor, 0);
    loop.train(3);
    if (!context.is_main()) at::randn({7}, loop.generator);  // from here on the ranks draw different numbers
    checkpoints.save(3);
    loop.optimizer->param_groups()[0].options().set_lr(0.5);
    checkpoints.save(4);
    checkpoints.save(5);
    loop.train(2);
    remember(context, loop);
  });
  EXPECT_EQ(list_checkpoints(folder_.path()).size(), 2U) << "keep";
  on_ranks(kRanks, [&](comm::Context& context, LoopCheckpoints& checkpoints, Loop& loop) {
    EXPECT_EQ(checkpoints.restore(), 5);
    EXPECT_EQ(loop.optimizer->param_groups()[0].options().get_lr(), 0.5);
    loop.train(2);
    const auto rank = static_cast<std::size_t>(context.rank());
    expect_same(weights[rank], state_of(*loop.net));
    expect_same(state[rank], state_of(*loop.net, *loop.optimizer));
  });
}

TEST_F(LoopCheckpointsTest, ChangedWorldSizeWarnsAboutGenerators) {
  on_ranks(2, [](comm::Context&, LoopCheckpoints& checkpoints, Loop&) { checkpoints.save(1); });
  testing::internal::CaptureStderr();
  on_ranks(1,
           [](comm::Context&, LoopCheckpoints& checkpoints, Loop&) { EXPECT_EQ(checkpoints.restore(), 1); });
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("generators stay as they are"));
}

TEST_F(LoopCheckpointsTest, DamagedOneIsMovedAsideForPrevious) {
  on_ranks(1, [](comm::Context&, LoopCheckpoints& checkpoints, Loop&) {
    checkpoints.save(1);
    checkpoints.save(2);
  });
  std::ofstream(folder_ / "step-00000002/model.safetensors", std::ios::app) << "x";
  testing::internal::CaptureStderr();
  on_ranks(1,
           [](comm::Context&, LoopCheckpoints& checkpoints, Loop&) { EXPECT_EQ(checkpoints.restore(), 1); });
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("damaged"));
}

TEST_F(LoopCheckpointsTest, RejectAnotherModuleOrOptimizerByName) {
  on_ranks(1, [](comm::Context&, LoopCheckpoints& checkpoints, Loop& loop) {
    loop.train(1);
    checkpoints.save(1);
  });
  const auto restores = [](comm::Context&, LoopCheckpoints& checkpoints, Loop& loop) {
    TensorMap before;
    for (const auto& [name, tensor] : state_of(*loop.net)) before.emplace(name, tensor.clone());
    try {
      checkpoints.restore();
    } catch (const Error&) {
      expect_same(state_of(*loop.net), before);
      throw;
    }
  };
  EXPECT_THAT([&] { on_ranks(1, restores, adamw, 6); },
              ThrowsMessage<DataError>(AllOf(HasSubstr("step-00000001"), HasSubstr("'0.weight'"))));
  const MakeOptimizer sgd = [](const std::vector<at::Tensor>& of) {
    return make<optim::SGD>(of, optim::SGDOptions(0.1));
  };
  EXPECT_THAT([&] { on_ranks(1, restores, sgd); },
              ThrowsMessage<DataError>(HasSubstr("for which this optimizer has no place")));
  const MakeOptimizer lbfgs = [](const std::vector<at::Tensor>& of) -> std::unique_ptr<optim::Optimizer> {
    return std::make_unique<optim::LBFGS>(of);
  };
  EXPECT_THAT([&] { on_ranks(1, restores, lbfgs); },
              ThrowsMessage<InvalidArgument>(HasSubstr("LoopOptions::others")));
}

TEST_F(LoopCheckpointsTest, MoreTensorsAndCountersAreFilledAgain) {
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    Loop loop;
    LoopOptions options = loop.options();
    std::int64_t epoch = 5, best = -2;
    options.others = {{"average", at::ones({3})}};
    options.counters = {{"epoch", &epoch}, {"best", &best}};
    LoopCheckpoints(context, folder_.path(), loop.models(), options).save(1);
    options.others["average"] = at::zeros({3});
    epoch = best = 0;
    LoopCheckpoints(context, folder_.path(), loop.models(), options).restore();
    EXPECT_TRUE(at::equal(options.others["average"], at::ones({3})));
    EXPECT_EQ(epoch, 5);
    EXPECT_EQ(best, -2);
  });
}

TEST_F(LoopCheckpointsTest, RejectModulesShardedOverRanks) {
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    Loop loop;
    LoopCheckpoints checkpoints(context, folder_.path(), loop.models(), loop.options());
    checkpoints.save(1);
    auto wrapper = std::make_shared<trireme::optim::Wrapper>(trireme::optim::Wrapper{"Pipeline"});
    trireme::optim::mark_wrapped(loop.net->parameters()[2], wrapper);
    const auto rejected = ThrowsMessage<InvalidArgument>(
        AllOf(HasSubstr("'1.weight' that belongs to a Pipeline"), HasSubstr("train::pipeline_loop")));
    EXPECT_THAT([&] { checkpoints.save(2); }, rejected);
    EXPECT_THAT([&] { checkpoints.restore(); }, rejected);
    EXPECT_THAT([&] { LoopCheckpoints(context, folder_.path(), loop.models()); }, rejected);
    wrapper.reset();
    EXPECT_EQ(checkpoints.restore(), 1);
  });
}

TEST_F(LoopCheckpointsTest, RejectExtraTensorsShardedOverRanks) {
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    Loop loop;
    const at::Tensor piece = at::ones({3});
    LoopOptions options = loop.options();
    options.others = {{"generator", piece}};
    auto wrapper =
        std::make_shared<trireme::optim::Wrapper>(trireme::optim::Wrapper{"FullyShardedDataParallel"});
    trireme::optim::mark_wrapped(piece, wrapper);
    const auto rejected = ThrowsMessage<InvalidArgument>(
        AllOf(HasSubstr("others has a tensor 'generator' that belongs to a FullyShardedDataParallel"),
              HasSubstr("expected the same values on all ranks"), HasSubstr("train::sharded_loop()")));
    EXPECT_THAT([&] { LoopCheckpoints(context, folder_.path(), loop.models(), options); }, rejected);
    wrapper.reset();
    LoopCheckpoints checkpoints(context, folder_.path(), loop.models(), options);
    wrapper = std::make_shared<trireme::optim::Wrapper>(trireme::optim::Wrapper{"Pipeline"});
    trireme::optim::mark_wrapped(piece, wrapper);
    EXPECT_THAT([&] { checkpoints.save(1); }, ThrowsMessage<InvalidArgument>(HasSubstr("'generator'")));
  });
}

/// Rotary positions are complex numbers without gradients.
struct Rotary : nn::Module {
  explicit Rotary(double angle)
      : bias(register_parameter("bias", at::ones({3}))),
        rotations(register_buffer("rotations", at::polar(at::ones({4}), at::full({4}, angle)))) {}
  at::Tensor bias, rotations;
};

TEST(LoopCheckpointsOfComplexBuffers, RestoreThem) {
  const test::TemporaryFolder folder;
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    Rotary saved(0.5), restored(1.5);
    LoopCheckpoints(context, folder.path(), saved).save(1);
    LoopCheckpoints checkpoints(context, folder.path(), restored);
    EXPECT_EQ(checkpoints.restore(), 1);
    EXPECT_TRUE(at::equal(at::view_as_real(restored.rotations), at::view_as_real(saved.rotations)));
  });
}

}  // namespace
}  // namespace trireme::checkpoint
