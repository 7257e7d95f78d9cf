// Checkpoints of a user-defined loop over shards. A resume gives the same bits on any number of ranks. Also
// second uses.
#include "trireme/train/run/sharded_loop.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <atomic>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/comm/launch_environment.h"
#include "trireme/optim/offload.h"

namespace trireme::train {
namespace {

using checkpoint::LoopCheckpoints;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
namespace nn = torch::nn;

struct Options {
  std::string optimizer = "adamw";
  int width = 5;
  parallel::ZeroStage stage = parallel::ZeroStage::kParameters;
  std::shared_ptr<optim::Offload> offload = nullptr;
  std::string backend = "threads";
};

/// A sharded network with sizes that no number of ranks divides. Each object has other initial weights.
struct Loop {
  Loop(comm::Context& context, const Options& options)
      : net(nn::Linear(4, options.width), nn::BatchNorm1d(options.width), nn::Linear(options.width, 3)),
        sharded(context, model::layers_of(net), {.zero = {.stage = options.stage}}),
        optimizer(optim::make_optimizer({.name = options.optimizer, .lr = 0.01, .momentum = 0.9},
                                        sharded.parameters(), options.offload)),
        generator(at::detail::createCPUGenerator(7 + static_cast<std::uint64_t>(context.rank()))) {}
  void train(int steps) {
    for (int i = 0; i < steps; ++i) {
      sharded.zero_grad();
      at::Tensor(sharded.forward(at::randn({6, 4}, generator))).square().mean().backward();
      optimizer->step();
    }
  }
  LoopCheckpoints checkpoints(comm::Context& context, const std::filesystem::path& folder) {
    return {context, folder, sharded_loop(sharded, *optimizer), {.generators = {generator}}};
  }
  checkpoint::TensorMap values() {
    checkpoint::TensorMap values;
    for (const auto& [name, piece] : sharded.parameters()) values.emplace(name, piece.detach().clone());
    for (const auto& [name, buffer] : sharded.buffers()) values.emplace(name, buffer.clone());
    for (const auto& [name, tensor] : optimizer->state()) values.emplace("of " + name, tensor.clone());
    return values;
  }
  nn::Sequential net;
  parallel::FullyShardedDataParallel sharded;
  std::unique_ptr<optim::Optimizer> optimizer;
  at::Generator generator;
};

void expect_same(const checkpoint::TensorMap& a, const checkpoint::TensorMap& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
}

class ShardedLoop : public testing::Test {
 protected:
  using Body = std::function<void(comm::Context&, LoopCheckpoints&, Loop&)>;
  void on_ranks(int ranks, const Body& body, const Options& options = {}) {
    const auto with_loop = [&](comm::Context& context) {
      Loop loop(context, options);
      LoopCheckpoints checkpoints = loop.checkpoints(context, folder_.path());
      body(context, checkpoints, loop);
    };
    comm::run_ranks_as_threads(ranks, with_loop, {.backend = options.backend, .timeout_s = 20});
  }
  checkpoint::TensorMap restored_by_one_rank() {
    checkpoint::TensorMap values;
    on_ranks(1, [&](comm::Context&, LoopCheckpoints& checkpoints, Loop& loop) {
      checkpoints.restore();
      values = loop.values();
    });
    return values;
  }
  test::TemporaryFolder folder_;
};

class StageOfShardedLoop : public ShardedLoop, public testing::WithParamInterface<Options> {};

TEST_P(StageOfShardedLoop, RanksContinueWithTheSameBits) {
  std::vector<checkpoint::TensorMap> at_the_end(2);
  on_ranks(
      2,
      [&](comm::Context& context, LoopCheckpoints& checkpoints, Loop& loop) {
        EXPECT_EQ(checkpoints.restore(), 0);
        loop.train(2);
        checkpoints.save(2);
        loop.train(1);
        checkpoints.save(3);
        loop.train(2);
        at_the_end[static_cast<std::size_t>(context.rank())] = loop.values();
      },
      GetParam());
  const std::vector<std::function<void(Loop&)>> uses_before = {[](Loop&) {},
                                                               [](Loop& loop) { loop.train(4); },
                                                               [](Loop& loop) {
                                                                 const at::NoGradGuard no_grad;
                                                                 loop.sharded.forward(at::randn({6, 4}));
                                                               }};
  for (const auto& use : uses_before) {
    on_ranks(
        2,
        [&](comm::Context& context, LoopCheckpoints& checkpoints, Loop& loop) {
          use(loop);
          EXPECT_EQ(checkpoints.restore(), 3);
          loop.train(2);
          expect_same(at_the_end[static_cast<std::size_t>(context.rank())], loop.values());
        },
        GetParam());
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, StageOfShardedLoop,
                         testing::Values(Options{.stage = parallel::ZeroStage::kOptimizer},
                                         Options{.stage = parallel::ZeroStage::kOptimizer, .backend = "gloo"},
                                         Options{.stage = parallel::ZeroStage::kGradients}, Options{},
                                         Options{.backend = "gloo"}),
                         [](const auto& row) {
                           return text("zero", static_cast<int>(row.param.stage), "_", row.param.backend);
                         });

TEST_F(ShardedLoop, AnyNumberOfRanksContinues) {
  on_ranks(2, [&](comm::Context&, LoopCheckpoints& checkpoints, Loop& loop) {
    loop.train(3);
    checkpoints.save(3);
  });
  const checkpoint::TensorMap of_two = restored_by_one_rank();
  on_ranks(3, [&](comm::Context&, LoopCheckpoints& checkpoints, Loop&) {
    EXPECT_EQ(checkpoints.restore(), 3);
    checkpoints.save(4);
  });
  expect_same(of_two, restored_by_one_rank());
}

TEST_F(ShardedLoop, RejectsAnotherModelOrOptimizerByName) {
  on_ranks(2, [](comm::Context&, LoopCheckpoints& checkpoints, Loop&) { checkpoints.save(1); });
  const auto expect_rejected = [&](const Options& options, const char* name) {
    std::atomic<int> refused = 0;
    on_ranks(
        2,
        [&](comm::Context&, LoopCheckpoints& checkpoints, Loop&) {
          EXPECT_THAT([&] { checkpoints.restore(); },
                      ThrowsMessage<DataError>(AllOf(HasSubstr("step-00000001"), HasSubstr(name))));
          ++refused;
        },
        options);
    EXPECT_EQ(refused, 2);
  };
  expect_rejected({.width = 6}, "'0.weight'");
  expect_rejected({.optimizer = "sgd"}, "'optimizer/exp_avg/0.bias'");
}

TEST_F(ShardedLoop, IsNotTakenForOneOverReplicas) {
  const auto replicas = [&](const std::function<void(LoopCheckpoints&)>& use) {
    comm::run_ranks_as_threads(1, [&](comm::Context& context) {
      nn::Sequential net(nn::Linear(4, 5), nn::BatchNorm1d(5), nn::Linear(5, 3));
      torch::optim::AdamW optimizer(net->parameters());
      net->forward(at::randn({6, 4})).sum().backward();
      optimizer.step();
      LoopCheckpoints checkpoints(context, folder_.path(), {*net, {&optimizer}});
      use(checkpoints);
    });
  };
  on_ranks(1, [](comm::Context&, LoopCheckpoints& checkpoints, Loop&) { checkpoints.save(1); });
  replicas([](LoopCheckpoints& checkpoints) {
    EXPECT_THAT([&] { checkpoints.restore(); },
                ThrowsMessage<DataError>(HasSubstr("holds nothing of this loop's optimizer 0")));
    checkpoints.save(2);
  });
  EXPECT_THAT([&] { restored_by_one_rank(); },
              ThrowsMessage<DataError>(HasSubstr("unexpected: 'optimizer/0/")));
}

TEST_F(ShardedLoop, ValuesThatLiveElsewhereAreRejected) {
  const auto offload =
      std::make_shared<optim::Offload>(optim::Offload::Options{.folder = folder_.path(), .owner = "rank 0"});
  on_ranks(1,
           [](comm::Context&, LoopCheckpoints& checkpoints, Loop&) {
             EXPECT_THAT([&] { checkpoints.save(1); },
                         ThrowsMessage<InvalidArgument>(HasSubstr("without an Offload")));
           },
           {.offload = offload});
}

/// Weights that one rank cannot save until `is_broken` is reset.
struct BrokenWeights final : checkpoint::LoopWeights {
  void check() const override { require(!is_broken, "a part is not there"); }
  optim::NamedTensors parameters() const override { return {{"weight", weight}}; }
  optim::NamedTensors buffers() const override { return {}; }
  at::Tensor weight = at::randn({3});
  bool is_broken = false;
};

TEST_F(ShardedLoop, ExceptionOfRankEndsSaveEverywhere) {
  std::atomic<int> thrown = 0;
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const auto weights = std::make_shared<BrokenWeights>();
    LoopCheckpoints checkpoints(context, folder_.path(), checkpoint::LoopModel(weights));
    weights->is_broken = !context.is_main();
    EXPECT_THAT([&] { checkpoints.save(1); },
                ThrowsMessage<InvalidArgument>(HasSubstr("a part is not there")));
    ++thrown;
    weights->is_broken = false;
    checkpoints.save(2);
    EXPECT_EQ(checkpoints.restore(), 2);
  });
  EXPECT_EQ(thrown, 2);
}

}  // namespace
}  // namespace trireme::train
