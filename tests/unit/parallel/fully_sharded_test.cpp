// Sharded weights in user-defined loops: the same numbers as with replicas, for any use of forward and
// backward, and for second uses.
#include <ATen/ops/ones.h>
#include <ATen/ops/real.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/parallel/small_models.h"
#include "tests/unit/parallel/stage_layers.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/model/checkpointed.h"
#include "trireme/model/skips.h"
#include "trireme/parallel/zero/fully_sharded_data_parallel.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using comm::run_ranks_as_threads;
using test::mean_square;
using testing::HasSubstr;

struct Case {
  ZeroStage stage = ZeroStage::kParameters;
  std::string backend = "threads";
  int num_ranks = 2;
};

std::vector<Case> cases() {
  return {{ZeroStage::kOptimizer, "shm", 2},      {ZeroStage::kGradients, "threads", 2},
          {ZeroStage::kParameters, "threads", 1}, {ZeroStage::kParameters, "threads", 2},
          {ZeroStage::kParameters, "shm", 3},     {ZeroStage::kParameters, "gloo", 2}};
}

model::Layer function(std::function<at::Tensor(const at::Tensor&)> of) {
  const auto module = std::make_shared<test::Module>();
  module->function = std::move(of);
  return test::layer_of(module);
}

std::vector<model::Layer> named_by_place(std::vector<model::Layer> layers) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (auto& [name, parameter] : layers[i].parameters) name = text(i, '.', name);
  }
  return layers;
}

/// No number of ranks divides the sizes. One layer is frozen, and one has no parameters.
std::vector<model::Layer> chain() {
  std::vector<model::Layer> result = named_by_place(
      {test::one(torch::nn::Linear(7, 13)), function([](const at::Tensor& x) { return x.tanh(); }),
       test::one(torch::nn::Linear(13, 5)), test::one(torch::nn::Linear(5, 3))});
  for (auto& [name, parameter] : result[2].parameters) parameter.set_requires_grad(false);
  return result;
}

/// The same weight twice, and a skip connection from the first layer past the second.
std::vector<model::Layer> tied_with_a_skip() {
  const torch::nn::Linear shared(5, 5);
  std::vector<model::Layer> result = {test::one(torch::nn::Linear(7, 5)), test::one(shared),
                                      test::one(shared), test::one(torch::nn::Linear(5, 3))};
  for (std::size_t i = 0; i < result.size(); ++i) {
    for (auto& [name, parameter] : result[i].parameters) name = text(i == 2 ? 1 : i, '.', name);
  }
  const auto first = result[0].forward, third = result[2].forward;
  result[0].forward = [first](const Fields& x) {
    const at::Tensor out = first(x);
    return Fields(batch::Tensors{out.tanh(), out.sin()});
  };
  result[0].gives = {"around"};
  result[2].forward = [third](const Fields& x) {
    return Fields(at::Tensor(third(Fields(x.at(0)))) + x.at(1));
  };
  result[2].takes = {"around"};
  return result;
}

at::Tensor input_of(const Context& context, int number) {
  return test::numbers({6, 7}, 10 * number + context.rank());
}
at::Tensor target_of(const Context& context, int number) {
  return test::numbers({6, 3}, 10 * number + context.rank() + 5);
}

/// The same loop over replicas and over shards. The body of a test sees this interface only.
struct Loop {
  virtual ~Loop() = default;
  virtual at::Tensor forward(const at::Tensor& x) = 0;
  virtual void zero_grad() = 0;
  virtual std::shared_ptr<void> no_sync() = 0;
  virtual double clip(double max_norm) = 0;
  std::unique_ptr<optim::Optimizer> optimizer;

  void make_optimizer(const std::string& name, const optim::NamedTensors& parameters) {
    optimizer =
        optim::make_optimizer({.name = name, .lr = 0.05, .weight_decay = 0.01, .momentum = 0.9}, parameters);
  }
  at::Tensor evaluate(const Context& context) {
    const at::NoGradGuard no_grad;
    return forward(input_of(context, 99));
  }
};

struct Replicas final : Loop {
  Replicas(Context& context, std::vector<model::Layer> of, const std::string& optimizer_name,
           UnusedParameters unused)
      : layers(std::move(of)), carried(model::carried_skips(layers)) {
    optim::NamedTensors parameters;
    for (const model::Layer& layer : layers) {
      for (const auto& item : layer.parameters) {
        const auto has_name = [&](const auto& known) { return known.first == item.first; };
        if (std::ranges::none_of(parameters, has_name)) parameters.push_back(item);
      }
    }
    make_optimizer(optimizer_name, parameters);
    ddp.emplace(context.world(), Replica{.parameters = parameters, .buffers = {}},
                DataParallelOptions{.unused_parameters = unused});
    all = parameters;
  }
  at::Tensor forward(const at::Tensor& x) override {
    Fields values = x;
    for (std::size_t i = 0; i < layers.size(); ++i)
      values = model::run_layer(layers[i], values, carried[i], carried[i + 1]);
    return values;
  }
  void zero_grad() override { ddp->zero_grad(); }
  std::shared_ptr<void> no_sync() override { return std::make_shared<DistributedDataParallel::NoSync>(*ddp); }
  double clip(double max_norm) override { return optim::clip_grad_norm(all, max_norm); }

  std::vector<model::Layer> layers;
  std::vector<model::SkipNames> carried;
  std::optional<DistributedDataParallel> ddp;
  optim::NamedTensors all;
};

struct Shards final : Loop {
  Shards(Context& context, std::vector<model::Layer> layers, const std::string& optimizer_name,
         FullyShardedOptions options)
      : sharded(context, std::move(layers), options) {
    make_optimizer(optimizer_name, sharded.parameters());
  }
  at::Tensor forward(const at::Tensor& x) override { return sharded.forward(x); }
  void zero_grad() override { sharded.zero_grad(); }
  std::shared_ptr<void> no_sync() override {
    return std::make_shared<FullyShardedDataParallel::NoSync>(sharded);
  }
  double clip(double max_norm) override { return sharded.clip_grad_norm(max_norm); }
  FullyShardedDataParallel sharded;
};

class FullyShardedLoop : public testing::TestWithParam<Case> {
 protected:
  using Body = std::function<void(Context&, Loop&)>;
  using Make = std::vector<model::Layer> (*)();

  static FullyShardedOptions options(UnusedParameters unused = UnusedParameters::kError) {
    return {.zero = {.stage = GetParam().stage},
            .data_parallel = {.bucket_mib = 2e-4, .first_bucket_mib = 1e-4, .unused_parameters = unused}};
  }
  /// Runs the loop both ways, and compares the outputs of the two models afterwards.
  static void expect_as_replicas(const Make& make, const Body& loop, const std::string& optimizer = "sgd",
                                 UnusedParameters unused = UnusedParameters::kError) {
    run([&](Context& context) {
      Replicas replicas(context, make(), optimizer, unused);
      loop(context, replicas);
      const at::Tensor expected = replicas.evaluate(context);
      for (const int gathered : {2, 0, 1, 3}) {
        FullyShardedOptions sharding = options(unused);
        sharding.zero.gathered_stages = gathered;
        Shards shards(context, make(), optimizer, sharding);
        loop(context, shards);
        const at::Tensor found = shards.evaluate(context);
        EXPECT_TRUE(found.allclose(expected, 1e-5, 1e-6)) << (found - expected).abs().max();
      }
    });
  }
  static void run(const std::function<void(Context&)>& body) {
    run_ranks_as_threads(GetParam().num_ranks, body, {.backend = GetParam().backend, .timeout_s = 20});
  }
};

INSTANTIATE_TEST_SUITE_P(Every, FullyShardedLoop, testing::ValuesIn(cases()), [](const auto& test) {
  return text("stage", static_cast<int>(test.param.stage), "_", test.param.backend, "_",
              test.param.num_ranks);
});

void plain_steps(Context& context, Loop& loop) {
  for (int step = 0; step < 3; ++step) {
    loop.zero_grad();
    mean_square(loop.forward(input_of(context, step)), target_of(context, step)).backward();
    loop.optimizer->step();
  }
}

TEST_P(FullyShardedLoop, StepsAsReplicasDo) {
  for (const char* optimizer : {"sgd", "adamw"}) expect_as_replicas(chain, plain_steps, optimizer);
}

TEST_P(FullyShardedLoop, HasTheBitsOfReplicas) {
  run([](Context& context) {
    Replicas replicas(context, chain(), "adamw", UnusedParameters::kError);
    Shards shards(context, chain(), "adamw", options());
    for (Loop* loop : {static_cast<Loop*>(&replicas), static_cast<Loop*>(&shards)})
      plain_steps(context, *loop);
    EXPECT_TRUE(shards.evaluate(context).equal(replicas.evaluate(context)));
  });
}

TEST_P(FullyShardedLoop, SharesListedLayersAndCarriesSkips) {
  expect_as_replicas(tied_with_a_skip, plain_steps, "adamw");
}

TEST_P(FullyShardedLoop, TakesSeveralForwardsBeforeOneBackward) {
  expect_as_replicas(chain, [](Context& context, Loop& loop) {
    for (int step = 0; step < 2; ++step) {
      loop.zero_grad();
      const at::Tensor one = loop.forward(input_of(context, step)),
                       other = loop.forward(input_of(context, 7));
      (mean_square(one, target_of(context, step)) + (one * other).mean()).backward();
      loop.optimizer->step();
    }
  });
}

TEST_P(FullyShardedLoop, TakesBackwardPassesInAnyGrouping) {
  expect_as_replicas(chain, [](Context& context, Loop& loop) {
    std::vector<at::Tensor> losses;
    for (int i = 0; i < 3; ++i)
      losses.push_back(mean_square(loop.forward(input_of(context, i)), target_of(context, i)));
    const auto unused = loop.forward(input_of(context, 4));  // its gradients are never requested
    loop.zero_grad();
    losses[0].backward();
    (losses[1] + losses[2]).backward();
    loop.optimizer->step();
  });
}

TEST_P(FullyShardedLoop, AddsUpWithoutReducingUnderNoSync) {
  expect_as_replicas(chain, [](Context& context, Loop& loop) {
    for (int step = 0; step < 2; ++step) {
      loop.zero_grad();
      {
        const auto guard = loop.no_sync();
        for (int part = 0; part < 2; ++part)
          mean_square(loop.forward(input_of(context, part)), target_of(context, part)).backward();
      }
      mean_square(loop.forward(input_of(context, 3)), target_of(context, 3)).backward();
      loop.optimizer->step();
      // Gradients that are accumulated and dropped have no effect.
      const auto guard = loop.no_sync();
      mean_square(loop.forward(input_of(context, 5)), target_of(context, 5)).backward();
    }
  });
}

TEST_P(FullyShardedLoop, AddsToGradientsThatAreThere) {
  expect_as_replicas(tied_with_a_skip, [](Context& context, Loop& loop) {
    for (int part = 0; part < 2; ++part)
      mean_square(loop.forward(input_of(context, part)), target_of(context, part)).backward();
    loop.optimizer->step();
  });
}

TEST_P(FullyShardedLoop, ClipsByTheNormOfAllRanks) {
  expect_as_replicas(tied_with_a_skip, [](Context& context, Loop& loop) {
    loop.zero_grad();
    (100 * mean_square(loop.forward(input_of(context, 1)), target_of(context, 1))).backward();
    EXPECT_GT(loop.clip(0.5), 1);
    EXPECT_NEAR(loop.clip(0.5), 0.5, 1e-4);
    loop.optimizer->step();
  });
}

TEST_P(FullyShardedLoop, EvaluatesBetweenAForwardAndItsBackward) {
  expect_as_replicas(chain, [](Context& context, Loop& loop) {
    loop.zero_grad();
    const at::Tensor loss = mean_square(loop.forward(input_of(context, 1)), target_of(context, 1));
    loop.evaluate(context);
    loss.backward();
    loop.optimizer->step();
  });
}

TEST_P(FullyShardedLoop, RunsRetainedGraphTwice) {
  expect_as_replicas(chain, [](Context& context, Loop& loop) {
    loop.zero_grad();
    const at::Tensor loss = mean_square(loop.forward(input_of(context, 1)), target_of(context, 1));
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    loop.optimizer->step();
  });
}

std::vector<model::Layer> with_a_checkpointed_layer() {
  std::vector<model::Layer> layers = chain();
  const auto plain = layers[0].forward;
  layers[0].forward = [plain](const Fields& x) {
    return model::checkpointed([plain](const at::Tensor& in) { return at::Tensor(plain(Fields(in))).sin(); },
                               at::Tensor(x));
  };
  return layers;
}

TEST_P(FullyShardedLoop, RunsCheckpointedLayersAgain) {
  expect_as_replicas(with_a_checkpointed_layer, plain_steps, "adamw");
}

/// Rank 0 skips the second parameter in every other pass.
std::vector<model::Layer> with_a_parameter_of_choice() {
  const auto passes = std::make_shared<int>(0);
  const test::Own own{.forward =
                          [passes](const at::Tensor& x, const std::vector<at::Tensor>& p) {
                            return x.size(0) == 6 && ++*passes % 2 == 0 ? x.mm(p[0]) : x.mm(p[0]) + p[1];
                          },
                      .shapes = {{7, 3}, {3}}};
  std::vector<model::Layer> layers = own();
  layers.push_back(test::one(torch::nn::Linear(3, 3)));
  return named_by_place(std::move(layers));
}

TEST_P(FullyShardedLoop, FindsUnreachedParameters) {
  expect_as_replicas(
      with_a_parameter_of_choice,
      [](Context& context, Loop& loop) {
        for (int step = 0; step < 4; ++step) {
          loop.zero_grad();
          // Ranks have different parities, so that in every pass one of two ranks skips the parameter.
          const at::Tensor x = input_of(context, step);
          const at::Tensor rows = context.is_main() ? x : x.narrow(0, 0, 5);
          const at::Tensor target = target_of(context, step).narrow(0, 0, rows.size(0));
          mean_square(loop.forward(rows), target).backward();
          loop.optimizer->step();
        }
      },
      "sgd", UnusedParameters::kFind);
}

TEST_P(FullyShardedLoop, NamesUnreachedParameterAndContinues) {
  run([](Context& context) {
    auto reaches_all = std::make_shared<bool>(false);
    const test::Own own{.forward =
                            [reaches_all](const at::Tensor& x, const std::vector<at::Tensor>& p) {
                              return *reaches_all ? x.mm(p[0]) + p[1] : x.mm(p[0]);
                            },
                        .shapes = {{7, 3}, {3}}};
    Shards shards(context, own(), "sgd", options());
    const auto step = [&] {
      shards.zero_grad();
      mean_square(shards.forward(input_of(context, 0)), target_of(context, 0)).backward();
    };
    EXPECT_THAT(step,
                testing::Throws<std::exception>(testing::Property(&std::exception::what, HasSubstr("'p1'"))));
    *reaches_all = true;
    EXPECT_NO_THROW(step());
  });
}

/// Throws once in the third layer, in forward or in backward.
struct Rejection {
  std::shared_ptr<bool> forward = std::make_shared<bool>(false), backward = std::make_shared<bool>(false);
  std::vector<model::Layer> layers() const {
    std::vector<model::Layer> made = chain();
    const auto plain = made[2].forward;
    made[2].forward = [*this, plain](const Fields& x) {
      require(!std::exchange(*forward, false), "a layer says no");
      const at::Tensor out = plain(x);
      if (out.requires_grad()) {
        out.register_hook([*this](const at::Tensor& gradient) {
          require(!std::exchange(*backward, false), "a hook says no");
          return gradient;
        });
      }
      return Fields(out);
    };
    return made;
  }
};

TEST_P(FullyShardedLoop, ContinuesAfterAForwardThatThrew) {
  run([](Context& context) {
    const Rejection refusal;
    Shards shards(context, refusal.layers(), "sgd", options()), untouched(context, chain(), "sgd", options());
    *refusal.forward = true;
    EXPECT_THROW(shards.forward(input_of(context, 0)), InvalidArgument);
    plain_steps(context, shards);
    plain_steps(context, untouched);
    EXPECT_TRUE(shards.evaluate(context).equal(untouched.evaluate(context)));
  });
}

TEST_P(FullyShardedLoop, FailsByNameAfterPartialReduction) {
  run([](Context& context) {
    const Rejection refusal;
    Shards shards(context, refusal.layers(), "sgd", options());
    *refusal.backward = true;
    const auto step = [&] {
      shards.zero_grad();
      mean_square(shards.forward(input_of(context, 0)), target_of(context, 0)).backward();
    };
    EXPECT_ANY_THROW(step());
    EXPECT_THAT(step, testing::ThrowsMessage<CommError>(HasSubstr("an exception ended a backward pass")));
  });
}

TEST_P(FullyShardedLoop, ContinuesAfterFailureUnderNoSync) {
  run([](Context& context) {
    const Rejection refusal;
    Shards shards(context, refusal.layers(), "sgd", options()), untouched(context, chain(), "sgd", options());
    *refusal.backward = true;
    {
      const auto guard = shards.no_sync();
      EXPECT_ANY_THROW(mean_square(shards.forward(input_of(context, 0)), target_of(context, 0)).backward());
    }
    plain_steps(context, shards);
    plain_steps(context, untouched);
    EXPECT_TRUE(shards.evaluate(context).equal(untouched.evaluate(context)));
  });
}

TEST_P(FullyShardedLoop, RejectsBackwardAfterWeightsAreFreed) {
  run([](Context& context) {
    at::Tensor loss;
    {
      Shards shards(context, chain(), "sgd", options());
      loss = mean_square(shards.forward(input_of(context, 0)), target_of(context, 0));
    }
    EXPECT_ANY_THROW(loss.backward());
  });
}

TEST(FullyShardedParameters, HaveNoElementsBetweenUses) {
  run_ranks_as_threads(2,
                       [](Context& context) {
                         const std::vector<model::Layer> layers = chain();
                         Shards shards(context, layers, "sgd", {});
                         plain_steps(context, shards);
                         const at::Tensor output = shards.forward(input_of(context, 0));
                         EXPECT_EQ(layers[0].parameters[0].second.numel(), 0);
                         EXPECT_EQ(layers[2].parameters[0].second.numel(), 0);
                         EXPECT_EQ(layers[3].parameters[0].second.numel(), 15) << "backward begins there";
                         mean_square(output, target_of(context, 0)).backward();
                         for (const model::Layer& layer : layers) {
                           for (const auto& [name, parameter] : layer.parameters)
                             EXPECT_EQ(parameter.numel(), 0) << name;
                         }
                       },
                       {.backend = "gloo", .timeout_s = 20});
}

TEST(FullyShardedOptions, AreRejectedWhereNothingIsSharedOut) {
  run_ranks_as_threads(2, [](Context& context) {
    EXPECT_THROW(FullyShardedDataParallel(context, {}, {}), InvalidArgument);
    EXPECT_THROW(FullyShardedDataParallel(context, {function([](const at::Tensor& x) { return x; })}, {}),
                 InvalidArgument);
  });
}

TEST(FullyShardedOptions, OtherZeroOptionsKeepDefaultStage) {
  const auto has_no_elements = [](Context& context) {
    for (const ZeroOptions& zero : {ZeroOptions{.keep_gradients = true}, ZeroOptions{.gathered_stages = 1}}) {
      const std::vector<model::Layer> layers = chain();
      FullyShardedDataParallel sharded(context, layers, {.zero = zero});
      mean_square(sharded.forward(input_of(context, 0)), target_of(context, 0)).backward();
      for (const model::Layer& layer : layers)
        for (const auto& [name, parameter] : layer.parameters) EXPECT_EQ(parameter.numel(), 0) << name;
    }
  };
  run_ranks_as_threads(2, has_no_elements, {.backend = "gloo", .timeout_s = 20});
}

/// A layer with complex parameters, between real ones.
struct Spectral : torch::nn::Module {
  Spectral() : weight(register_parameter("weight", at::ones({5}, at::kComplexFloat))) {}
  at::Tensor forward(const at::Tensor& x) { return at::real(x * weight); }
  at::Tensor weight;
};

TEST(FullyShardedErrors, RejectsComplexParameterByName) {
  for (const ZeroStage stage : {ZeroStage::kOptimizer, ZeroStage::kGradients, ZeroStage::kParameters}) {
    run_ranks_as_threads(2, [&](Context& context) {
      const auto spectral = std::make_shared<Spectral>();
      const auto wrapped = [&] {
        FullyShardedDataParallel(context,
                                 named_by_place({test::one(torch::nn::Linear(7, 5)), test::one(spectral)}),
                                 {.zero = {.stage = stage}});
      };
      EXPECT_THAT(wrapped, testing::ThrowsMessage<InvalidArgument>(
                               testing::AllOf(HasSubstr("parameter '1.inner.weight' is complex (c64)"),
                                              HasSubstr("at::view_as_real"))));
      spectral->weight.requires_grad_(false);
      wrapped();
    });
  }
}

}  // namespace
}  // namespace trireme::parallel
