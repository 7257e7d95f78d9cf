// Gradients of gradients with sharded weights. They equal those of one rank on the batch of all ranks, and no
// gathered weights remain in memory.
#include <ATen/ops/cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "tests/unit/parallel/small_models.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/comm/context.h"
#include "trireme/model/checkpointed.h"
#include "trireme/parallel/zero/fully_sharded_data_parallel.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using testing::HasSubstr;
using torch::autograd::grad;
namespace nn = torch::nn;

at::Tensor derived(const at::Tensor& output, const at::Tensor& input) {
  return grad({output.sum()}, {input}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
}

at::Tensor penalty_of(const at::Tensor& gradient) { return (gradient.norm(2, 1) - 1).square().mean(); }

constexpr std::int64_t kRowsOfRank = 3, kWidth = 5;

/// A loop over the whole model on all rows, or over shards on the rows of this rank.
struct Derivation {
  std::function<at::Tensor(const at::Tensor&)> forward;
  std::function<std::shared_ptr<void>()> no_sync;
  int rank = 0, num_ranks = 1;  ///< the rank whose rows are used
  int all = 1;                  ///< number of ranks in total

  at::Tensor input(int number) const {
    const at::Tensor rows = test::numbers_f64({all * kRowsOfRank, kWidth}, 10 * number);
    return rows.narrow(0, rank * kRowsOfRank, num_ranks * kRowsOfRank).clone().requires_grad_(true);
  }
};
using DerivationBody = std::function<void(const Derivation&)>;

template <class... Layers>
nn::Sequential chain_of(Layers... layers) {
  nn::Sequential chain(layers...);
  test::fill_parameters(*chain);
  chain->to(at::kDouble);
  return chain;
}

nn::Sequential with_tanh() {
  return chain_of(nn::Linear(kWidth, 7), nn::Tanh(), nn::Linear(7, 6), nn::Tanh(), nn::Linear(6, 1));
}
/// The gradient of the input does not depend on activations. So its own gradients do not go through the
/// forward graph.
nn::Sequential linear_only() { return chain_of(nn::Linear(kWidth, 6), nn::Linear(6, 1)); }
struct SeveralInOne : nn::Module {
  SeveralInOne() {
    register_module("first", first);
    register_module("last", last);
  }
  at::Tensor forward(const at::Tensor& x) { return last->forward(first->forward(x).tanh()); }
  nn::Linear first{kWidth, 6}, last{6, 1};
};
nn::Sequential in_one_layer() { return chain_of(std::make_shared<SeveralInOne>()); }

using LayersOf = std::function<std::vector<model::Layer>(const nn::Sequential&)>;

std::map<std::string, at::Tensor> gradients_of_one_rank(const nn::Sequential& net, const LayersOf& layers_of,
                                                        int num_ranks, const DerivationBody& body) {
  const std::vector<model::Layer> layers = layers_of(net);
  body({.forward =
            [&](const at::Tensor& x) {
              Fields values = x;
              for (const model::Layer& layer : layers) values = layer.forward(values);
              return at::Tensor(values);
            },
        .no_sync = [] { return nullptr; },
        .num_ranks = num_ranks,
        .all = num_ranks});
  std::map<std::string, at::Tensor> gradients;
  for (const auto& item : net->named_parameters()) gradients[item.key()] = item.value().grad();
  return gradients;
}

void expect_pieces_of(const std::map<std::string, at::Tensor>& whole,
                      const FullyShardedDataParallel& sharded) {
  for (const auto& [name, parameter] : sharded.parameters()) {
    const at::Tensor& expected = whole.at(name);
    // A loop may leave a bias without a gradient. In shards that is a gradient of zeros.
    const at::Tensor found = parameter.grad().defined() ? parameter.grad() : at::zeros_like(parameter);
    const auto piece = sharded.pieces().find(name);
    const at::Tensor part =
        (expected.defined() ? expected : at::zeros({100}, at::kDouble))
            .reshape({-1})
            .narrow(0, piece == sharded.pieces().end() ? 0 : piece->second.begin, found.numel());
    EXPECT_TRUE(found.reshape({-1}).allclose(part, 1e-11, 1e-13)) << name << '\n' << found << '\n' << part;
  }
}

struct DerivationCase {
  std::string backend;
  ZeroStage stage = ZeroStage::kParameters;
  int num_ranks = 2;
};

class ShardedDerivatives : public testing::TestWithParam<DerivationCase> {
 protected:
  static void run(const std::function<void(Context&)>& body) {
    comm::run_ranks_as_threads(GetParam().num_ranks, body, {.backend = GetParam().backend, .timeout_s = 20});
  }
  static void expect_as_one_rank(
      const DerivationBody& body,
      const std::vector<nn::Sequential (*)()>& nets = {with_tanh, linear_only, in_one_layer},
      const LayersOf& layers_of = [](const nn::Sequential& net) { return model::layers_of(net); }) {
    for (const auto& net : nets) {
      const auto whole = gradients_of_one_rank(net(), layers_of, GetParam().num_ranks, body);
      for (const int gathered : {2, 0, 1}) {
        run([&](Context& context) {
          FullyShardedDataParallel sharded(context, layers_of(net()),
                                           {.zero = {.stage = GetParam().stage, .gathered_stages = gathered},
                                            .data_parallel = {.bucket_mib = 2e-4,
                                                              .first_bucket_mib = 1e-4,
                                                              .unused_parameters = UnusedParameters::kFind}});
          for (int step = 0; step < 2; ++step) {
            sharded.zero_grad();
            body({.forward = [&](const at::Tensor& x) { return at::Tensor(sharded.forward(x)); },
                  .no_sync = [&] { return std::make_shared<FullyShardedDataParallel::NoSync>(sharded); },
                  .rank = context.rank(),
                  .all = context.world_size()});
            expect_pieces_of(whole, sharded);
          }
        });
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Every, ShardedDerivatives,
                         testing::Values(DerivationCase{"gloo"}, DerivationCase{"shm"},
                                         DerivationCase{"shm", ZeroStage::kParameters, 3},
                                         DerivationCase{"gloo", ZeroStage::kParameters, 1},
                                         DerivationCase{"gloo", ZeroStage::kGradients},
                                         DerivationCase{"shm", ZeroStage::kOptimizer}),
                         [](const auto& test) {
                           return text(test.param.backend, "_stage", static_cast<int>(test.param.stage), "_",
                                       test.param.num_ranks);
                         });

TEST_P(ShardedDerivatives, ArePenalisedInPassOfLoss) {
  expect_as_one_rank([](const Derivation& loop) {
    const at::Tensor x = loop.input(0), y = loop.forward(x);
    (penalty_of(derived(y, x)) + y.mean()).backward();
  });
}

TEST_P(ShardedDerivatives, ArePenalisedInSeparatePass) {
  expect_as_one_rank([](const Derivation& loop) {
    const at::Tensor x = loop.input(0);
    penalty_of(derived(loop.forward(x), x)).backward();
  });
}

TEST_P(ShardedDerivatives, OutliveAnotherForward) {
  expect_as_one_rank([](const Derivation& loop) {
    const at::Tensor x = loop.input(0);
    const at::Tensor gradient = derived(loop.forward(x), x);
    const at::Tensor real = loop.forward(loop.input(1));
    (penalty_of(gradient) + real.square().mean()).backward();
  });
}

TEST_P(ShardedDerivatives, OutliveOtherBackwardPasses) {
  expect_as_one_rank([](const Derivation& loop) {
    const at::Tensor x = loop.input(0);
    const at::Tensor gradient = derived(loop.forward(x), x);
    loop.forward(loop.input(1)).square().mean().backward();
    (-loop.forward(loop.input(2)).mean()).backward();
    penalty_of(gradient).backward();
  });
}

TEST_P(ShardedDerivatives, AddUpUnderNoSync) {
  expect_as_one_rank([](const Derivation& loop) {
    {
      const auto apart = loop.no_sync();
      const at::Tensor x = loop.input(0);
      penalty_of(derived(loop.forward(x), x)).backward();
    }
    const at::Tensor x = loop.input(1), y = loop.forward(x);
    (penalty_of(derived(y, x)) + y.mean()).backward();
  });
}

TEST_P(ShardedDerivatives, AreDerivedOnceMore) {
  expect_as_one_rank(
      [](const Derivation& loop) {
        const at::Tensor x = loop.input(0);
        const at::Tensor first = derived(loop.forward(x), x);
        const at::Tensor second = derived(first.square(), x);
        (second.square().mean() + first.square().mean()).backward();
      },
      {with_tanh, in_one_layer});
}

TEST_P(ShardedDerivatives, ChangeAnInputWithoutAReduction) {
  expect_as_one_rank([](const Derivation& loop) {
    const at::Tensor x = loop.input(0);
    loop.forward(x).square().mean().backward();  // its gradients are kept
    const at::Tensor against = grad({loop.forward(x).sum()}, {x})[0];
    loop.forward((x + 0.1 * against).detach()).square().mean().backward();
  });
}

TEST_P(ShardedDerivatives, RunTwiceWithRetainedGraph) {
  expect_as_one_rank([](const Derivation& loop) {
    const at::Tensor x = loop.input(0);
    const at::Tensor penalty = penalty_of(derived(loop.forward(x), x));
    penalty.backward({}, /*retain_graph=*/true);
    penalty.backward();
  });
}

/// The derivative along a direction, as the gradient of a gradient with respect to its grad_output.
TEST_P(ShardedDerivatives, AreTakenAlongADirection) {
  expect_as_one_rank([](const Derivation& loop) {
    const at::Tensor x = loop.input(0), y = loop.forward(x);
    const at::Tensor given = at::ones_like(y).requires_grad_(true);
    const at::Tensor back = grad({y}, {x}, {given}, true, /*create_graph=*/true)[0];
    const at::Tensor along = grad({back}, {given}, {loop.input(3)}, true, /*create_graph=*/true)[0];
    along.square().mean().backward();
  });
}

std::vector<model::Layer> checkpointed_layers(const nn::Sequential& net) {
  std::vector<model::Layer> layers = model::layers_of(net);
  for (model::Layer& layer : layers) {
    layer.forward = [plain = layer.forward](const Fields& x) {
      return model::checkpointed(
          [plain](const at::Tensor& in) { return at::Tensor(plain(Fields(in))).sin(); }, at::Tensor(x));
    };
  }
  return layers;
}

TEST_P(ShardedDerivatives, GoThroughCheckpointedLayers) {
  expect_as_one_rank(
      [](const Derivation& loop) {
        const at::Tensor x = loop.input(0), y = loop.forward(x);
        (penalty_of(derived(y, x)) + y.mean()).backward();
      },
      {with_tanh}, checkpointed_layers);
}

/// The last layer returns its output and the gradient of that with respect to its own input, or to the input
/// of the model.
LayersOf deriving_itself(bool by_first_input) {
  return [by_first_input](const nn::Sequential& net) {
    std::vector<model::Layer> layers = model::layers_of(net);
    const auto input = std::make_shared<at::Tensor>();
    layers.front().forward = [input, plain = layers.front().forward](const Fields& x) {
      *input = at::Tensor(x);
      return plain(x);
    };
    layers.back().forward = [input, by_first_input, plain = layers.back().forward](const Fields& x) {
      const at::Tensor y = plain(x);
      const at::Tensor slope = derived(y.sin(), by_first_input ? std::exchange(*input, {}) : at::Tensor(x));
      return Fields(y + slope.square().sum(1, true));
    };
    return layers;
  };
}

TEST_P(ShardedDerivatives, ArePartOfALayer) {
  for (const bool by_first_input : {false, true}) {
    expect_as_one_rank([](const Derivation& loop) { loop.forward(loop.input(0)).square().mean().backward(); },
                       {with_tanh, linear_only}, deriving_itself(by_first_input));
  }
}

/// Only rank 0 keeps a graph beyond the step. This does not change the operations that ranks issue.
TEST_P(ShardedDerivatives, MayBeKeptByOneRank) {
  run([](Context& context) {
    FullyShardedDataParallel sharded(context, model::layers_of(with_tanh()),
                                     {.zero = {.stage = GetParam().stage}});
    at::Tensor kept;
    for (int step = 0; step < 3; ++step) {
      sharded.zero_grad();
      const at::Tensor x = test::numbers_f64({3, kWidth}, step).requires_grad_(true);
      const at::Tensor y = sharded.forward(x), gradient = derived(y, x);
      (penalty_of(gradient) + y.mean()).backward({}, /*retain_graph=*/true);
      if (context.is_main()) kept = gradient;
    }
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::Tensor(sharded.forward(test::numbers_f64({3, kWidth}, 9))).isfinite().all().item<bool>());
  });
}

/// Weights of the layers that are gathered in memory.
std::vector<std::string> gathered_weights(const nn::Sequential& net) {
  std::vector<std::string> names;
  for (const auto& item : net->named_parameters()) {
    if (item.value().numel() > 0) names.push_back(item.key());
  }
  return names;
}

class WeightsOfDerivatives : public testing::Test {
 protected:
  using Body = std::function<void(const nn::Sequential&, FullyShardedDataParallel&)>;
  static void run(const Body& body) {
    comm::run_ranks_as_threads(2,
                               [&](Context& context) {
                                 const nn::Sequential net = with_tanh();
                                 FullyShardedDataParallel sharded(context, model::layers_of(net));
                                 body(net, sharded);
                               },
                               {.backend = "gloo", .timeout_s = 20});
  }
  static at::Tensor input() { return test::numbers_f64({3, kWidth}, 1).requires_grad_(true); }
};

TEST_F(WeightsOfDerivatives, LeaveMemoryWithTheirGraph) {
  run([](const nn::Sequential& net, FullyShardedDataParallel& sharded) {
    {
      const at::Tensor x = input(), gradient = derived(sharded.forward(x), x);
      EXPECT_THAT(gathered_weights(net), testing::SizeIs(6));
    }
    EXPECT_THAT(gathered_weights(net), testing::IsEmpty());
    at::Tensor(sharded.forward(input())).sum().backward();
    EXPECT_THAT(gathered_weights(net), testing::IsEmpty());
  });
}

TEST_F(WeightsOfDerivatives, LeaveMemoryWithGraph) {
  run([](const nn::Sequential& net, FullyShardedDataParallel& sharded) {
    const at::Tensor x = input(), y = sharded.forward(x), gradient = derived(y, x);
    const at::Tensor loss = penalty_of(gradient) + y.mean();
    loss.backward({}, /*retain_graph=*/true);
    EXPECT_THAT(gathered_weights(net), testing::SizeIs(6));
    loss.backward();
    EXPECT_THAT(gathered_weights(net), testing::IsEmpty());
  });
}

TEST_F(WeightsOfDerivatives, AreReleasedAfterPassWithoutGraph) {
  run([](const nn::Sequential& net, FullyShardedDataParallel& sharded) {
    const at::Tensor x = input();
    const at::Tensor gradient = grad({at::Tensor(sharded.forward(x)).sum()}, {x})[0];
    EXPECT_THAT(gathered_weights(net), testing::IsEmpty());
    for (const auto& [name, piece] : sharded.parameters()) EXPECT_FALSE(piece.grad().defined()) << name;
  });
}

TEST_F(WeightsOfDerivatives, AreBackAfterThrowingPass) {
  run([](const nn::Sequential& net, FullyShardedDataParallel& sharded) {
    {
      const at::Tensor x = input();
      const at::Tensor y = sharded.forward(x);
      x.register_hook([](const at::Tensor& gradient) {
        require(!gradient.defined(), "a hook says no");
        return gradient;
      });
      EXPECT_ANY_THROW(derived(y, x));
    }
    const at::Tensor x = input(), y = sharded.forward(x);
    (penalty_of(derived(y, x)) + y.mean()).backward();
    EXPECT_THAT(gathered_weights(net), testing::IsEmpty());
    for (const auto& [name, piece] : sharded.parameters()) EXPECT_TRUE(piece.grad().defined()) << name;
  });
}

TEST_F(WeightsOfDerivatives, AreRejectedWhereTheWrapperIsGone) {
  comm::run_ranks_as_threads(
      2,
      [&](Context& context) {
        at::Tensor penalty;
        {
          FullyShardedDataParallel sharded(context, model::layers_of(with_tanh()));
          const at::Tensor x = input();
          penalty = penalty_of(derived(sharded.forward(x), x));
        }
        EXPECT_THAT([&] { penalty.backward(); },
                    testing::Throws<std::exception>(testing::Property(
                        &std::exception::what, HasSubstr("FullyShardedDataParallel is gone"))));
      },
      {.backend = "gloo", .timeout_s = 20});
}

}  // namespace
}  // namespace trireme::parallel
