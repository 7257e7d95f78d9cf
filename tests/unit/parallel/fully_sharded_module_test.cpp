// Changes of the module and the optimizer by a loop. They are followed, or rejected by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <sstream>

#include "tests/unit/parallel/small_models.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/optim/tensors_of.h"
#include "trireme/parallel/zero/fully_sharded_data_parallel.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using testing::HasSubstr;
namespace nn = torch::nn;

nn::Sequential small_net() {
  nn::Sequential net(nn::Linear(4, 16), nn::Tanh(), nn::Linear(16, 1));
  test::fill_parameters(*net);
  return net;
}

at::Tensor loss_of(FullyShardedDataParallel& sharded) {
  return at::Tensor(sharded.forward(test::numbers({6, 4}, 1))).square().mean();
}

struct Sharding {
  std::string backend;
  ZeroStage stage;
};

class FullyShardedModule : public testing::TestWithParam<Sharding> {
 public:
  using Body = std::function<void(nn::Sequential&, FullyShardedDataParallel&)>;
  static void run(const Body& body) {
    comm::run_ranks_as_threads(2,
                               [&](Context& context) {
                                 nn::Sequential net = small_net();
                                 FullyShardedDataParallel sharded(context, model::layers_of(net),
                                                                  {.zero = {.stage = GetParam().stage}});
                                 body(net, sharded);
                               },
                               {.backend = GetParam().backend, .timeout_s = 20});
  }
};

INSTANTIATE_TEST_SUITE_P(Every, FullyShardedModule,
                         testing::Values(Sharding{"shm", ZeroStage::kParameters},
                                         Sharding{"gloo", ZeroStage::kParameters},
                                         Sharding{"gloo", ZeroStage::kOptimizer}),
                         [](const auto& test) {
                           return text(test.param.backend, "_stage", static_cast<int>(test.param.stage));
                         });

TEST_P(FullyShardedModule, TakesTheZeroGradOfItsOptimizer) {
  for (const bool set_to_none : {true, false}) {
    run([&](nn::Sequential&, FullyShardedDataParallel& sharded) {
      torch::optim::SGD optimizer(optim::tensors_of(sharded.parameters()), 0.05);
      double first = 0, last = 0;
      for (int step = 0; step < 4; ++step) {
        optimizer.zero_grad(set_to_none);
        const at::Tensor loss = loss_of(sharded);
        loss.backward();
        optimizer.step();
        (step == 0 ? first : last) = loss.item<double>();
      }
      EXPECT_LT(last, first);
    });
  }
}

TEST_P(FullyShardedModule, RejectsValuesThatWereLoadedAfterwards) {
  run([](nn::Sequential& net, FullyShardedDataParallel& sharded) {
    const auto load = [&] {
      std::stringstream file;
      torch::save(small_net(), file);
      torch::load(net, file);
      sharded.forward(test::numbers({6, 4}, 1));
    };
    EXPECT_THAT(load, testing::ThrowsMessage<InvalidArgument>(HasSubstr("'0.")));
  });
}

TEST_P(FullyShardedModule, RejectsAnotherTypeOfItsParameters) {
  run([](nn::Sequential& net, FullyShardedDataParallel& sharded) {
    const auto convert = [&] {
      net->to(torch::kDouble);
      sharded.forward(test::numbers({6, 4}, 1).to(at::kDouble));
    };
    EXPECT_THAT(convert, testing::ThrowsMessage<InvalidArgument>(HasSubstr("'0.")));
  });
}

TEST_P(FullyShardedModule, RejectsAnOptimizerOfTheModulesParameters) {
  run([](nn::Sequential& net, FullyShardedDataParallel& sharded) {
    torch::optim::SGD sgd(net->parameters(), 0.05);
    torch::optim::Adam adam(net->parameters());
    for (torch::optim::Optimizer* optimizer :
         {static_cast<torch::optim::Optimizer*>(&sgd), static_cast<torch::optim::Optimizer*>(&adam)}) {
      sharded.zero_grad();
      loss_of(sharded).backward();
      EXPECT_THAT([&] { optimizer->step(); }, testing::ThrowsMessage<InvalidArgument>(
                                                  AllOf(HasSubstr("'0.weight'"), HasSubstr("parameters()"))));
    }
  });
}

/// Warnings of both ranks in a loop whose optimizer `make` creates for the pieces.
std::string warnings_of(const std::function<std::function<void()>(const FullyShardedDataParallel&)>& make,
                        const std::function<void(const FullyShardedModule::Body&)>& run) {
  testing::internal::CaptureStderr();
  run([&](nn::Sequential&, FullyShardedDataParallel& sharded) {
    const std::function<void()> step = make(sharded);
    for (int i = 0; i < 40; ++i) {
      sharded.zero_grad();
      loss_of(sharded).backward();
      step();
    }
  });
  return testing::internal::GetCapturedStderr();
}

/// Its weights may be those of an earlier step, or of several steps at once.
TEST_P(FullyShardedModule, RejectsGradientsOfTheModulesOwnForward) {
  run([](nn::Sequential& net, FullyShardedDataParallel& sharded) {
    EXPECT_THAT(
        [&] {
          net->forward(test::numbers({6, 4}, 1)).square().mean().backward();
        },
        testing::Throws<std::exception>(testing::Property(
            &std::exception::what, testing::AnyOf(HasSubstr("call forward() of the FullyShardedDataParallel"),
                                                  HasSubstr("while it is not gathered")))));
    sharded.zero_grad();
    loss_of(sharded).backward();
    for (const auto& [name, piece] : sharded.parameters()) EXPECT_TRUE(piece.grad().defined()) << name;
  });
}

TEST_P(FullyShardedModule, WarnsOncePerRankOfUnoptimizedPieces) {
  const std::string warnings = warnings_of(
      [](const FullyShardedDataParallel& sharded) {
        std::vector<at::Tensor> some;
        for (const auto& [name, piece] : sharded.parameters())
          if (name != "0.weight") some.push_back(piece);
        return [sgd = std::make_shared<torch::optim::SGD>(some, 0.05)] { sgd->step(); };
      },
      run);
  EXPECT_THAT(warnings, HasSubstr("no optimizer has changed parameter '0.weight', with gradients in 32"));
  std::size_t lines = 0;
  for (std::size_t at = warnings.find("no optimizer"); at != std::string::npos;
       at = warnings.find("no optimizer", at + 1))
    ++lines;
  EXPECT_LE(lines, 2U);
}

TEST_P(FullyShardedModule, WarnsOfAllPiecesWithoutOptimizer) {
  const std::string warnings = warnings_of([](const FullyShardedDataParallel&) { return [] {}; }, run);
  EXPECT_THAT(warnings, testing::ContainsRegex("parameter '[02].(weight|bias)' and [123] more"));
}

TEST_P(FullyShardedModule, DoesNotWarnOfOptimizedPieces) {
  EXPECT_EQ(warnings_of(
                [](const FullyShardedDataParallel& sharded) {
                  return
                      [adam = std::make_shared<torch::optim::Adam>(optim::tensors_of(sharded.parameters()))] {
                        adam->step();
                      };
                },
                run),
            "");
  EXPECT_EQ(warnings_of(
                [](const FullyShardedDataParallel& sharded) {
                  const std::shared_ptr<optim::Optimizer> own =
                      optim::make_optimizer({.name = "adamw", .lr = 0.01}, sharded.parameters());
                  return [own] { own->step(); };
                },
                run),
            "");
}

TEST_P(FullyShardedModule, ErrorNamesParametersFrozenAfterConstruction) {
  run([](nn::Sequential& net, FullyShardedDataParallel& sharded) {
    net->parameters()[3].set_requires_grad(false);
    EXPECT_THAT([&] { loss_of(sharded); },
                testing::ThrowsMessage<InvalidArgument>(HasSubstr("parameter '2.bias' has requires_grad")));
    net->parameters()[3].set_requires_grad(true);
    EXPECT_NO_THROW(loss_of(sharded).backward());
  });
}

TEST_P(FullyShardedModule, NamesAParameterThatWasAddedAfterwards) {
  run([](nn::Sequential& net, FullyShardedDataParallel& sharded) {
    net->ptr(0)->as<nn::Linear>()->register_parameter("extra", at::zeros({3}));
    EXPECT_THAT([&] { loss_of(sharded); },
                testing::ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("layer '0'"), HasSubstr("'extra'"))));
  });
}

TEST(FullyShardedRelease, NeitherSavesNorComputesReleasedValues) {
  comm::run_ranks_as_threads(2,
                             [](Context& context) {
                               nn::Sequential net = small_net();
                               FullyShardedDataParallel sharded(context, model::layers_of(net));
                               const auto message =
                                   testing::Property(&std::exception::what, HasSubstr("'0.weight'"));
                               EXPECT_THAT(
                                   [&] {
                                     std::stringstream file;
                                     torch::save(net, file);
                                   },
                                   testing::Throws<std::exception>(message));
                               EXPECT_THAT(
                                   [&] {
                                     net->forward(test::numbers({6, 4}, 1));
                                   },
                                   testing::Throws<std::exception>(message));
                             },
                             {.backend = "gloo", .timeout_s = 20});
}

}  // namespace
}  // namespace trireme::parallel
