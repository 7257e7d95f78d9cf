// Options of sharded weights: a rounded working copy, groups of replicas, and small parameters that stay
// gathered. Also layers that use weights that are not gathered.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/normalization.h>

#include "tests/unit/parallel/small_models.h"
#include "tests/unit/parallel/stage_layers.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/comm/mesh.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/pipeline/pipeline.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using comm::run_ranks_as_threads;
using testing::HasSubstr;

/// Autocast on this thread.
struct Autocast {
  explicit Autocast(at::ScalarType type) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, type);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
};

model::Layer under_autocast(model::Layer layer, at::ScalarType type) {
  layer.forward = [type, forward = layer.forward](const Fields& inputs) {
    const Autocast scope(type);
    return forward(inputs);
  };
  return layer;
}

/// Named "0.inner.weight" and so on. No number of ranks divides the sizes, and one layer is frozen.
std::vector<model::Layer> layers_with_norm(std::optional<at::ScalarType> autocast = std::nullopt) {
  std::vector<model::Layer> result = {test::one(torch::nn::Linear(7, 130)),
                                      test::one(torch::nn::LayerNorm(torch::nn::LayerNormOptions({130}))),
                                      test::one(torch::nn::Linear(130, 33)),
                                      test::one(torch::nn::Linear(33, 3))};
  for (auto& [name, parameter] : result[2].parameters) parameter.set_requires_grad(false);
  for (std::size_t i = 0; i < result.size(); ++i) {
    for (auto& [name, parameter] : result[i].parameters) name = text(i, '.', name);
    if (autocast) result[i] = under_autocast(std::move(result[i]), *autocast);
  }
  return result;
}

at::Tensor mean_square_in_f32(const at::Tensor& output, const at::Tensor& target) {
  return (output.to(at::kFloat) - target).square().mean();
}

struct TrainingOptions {
  ZeroOptions zero = {};
  int num_microbatches = 2;
  std::optional<at::ScalarType> autocast = {};
  int shard_ranks = 0;
};

/// An independent run: a pipeline of one rank, replicated over the world.
struct OptionTraining {
  OptionTraining(Context& context, const TrainingOptions& options)
      : world(context),
        pipe(context, groups(context, options), layers_with_norm(options.autocast),
             {.num_microbatches = 1,
              .program = schedule::data_parallel(options.num_microbatches, 4),
              .data_parallel = {.bucket_mib = 2e-4, .first_bucket_mib = 1e-4},
              .zero = options.zero}),
        optimizer(
            optim::make_optimizer({.name = "adamw", .lr = 0.02, .weight_decay = 0}, pipe.parameters())) {}
  static PipelineGroups groups(Context& context, const TrainingOptions& options) {
    PipelineGroups result{.pipeline = context.self(), .data = context.world()};
    if (options.shard_ranks == 0) return result;
    comm::Mesh mesh(
        context, {{"copies", context.world_size() / options.shard_ranks}, {"shards", options.shard_ranks}});
    result.shard_groups = ShardGroups{.shards = mesh.group("shards"), .copies = mesh.group("copies")};
    return result;
  }
  double step(int number) {
    pipe.zero_grad();
    const double loss = pipe.step(test::numbers({6, 7}, 10 * number + world.rank()),
                                  test::numbers({6, 3}, 10 * number + world.rank() + 5), mean_square_in_f32);
    optimizer->step();
    return loss;
  }
  at::Tensor outputs() { return pipe.evaluate(test::numbers({6, 7}, 99)).at(0); }
  std::map<std::string, at::Tensor> weights() const {
    const optim::NamedTensors all = pipe.weights();
    return {all.begin(), all.end()};
  }

  Context& world;
  Pipeline pipe;
  std::unique_ptr<optim::Optimizer> optimizer;
};

struct OptionCase {
  ZeroStage stage = ZeroStage::kOptimizer;
  std::string backend = "threads";
};

std::vector<OptionCase> option_cases() {
  std::vector<OptionCase> all;
  for (const ZeroStage stage : {ZeroStage::kOptimizer, ZeroStage::kGradients, ZeroStage::kParameters}) {
    for (const char* backend : {"threads", "shm", "gloo"}) all.push_back({stage, backend});
  }
  return all;
}

class ZeroWith : public testing::TestWithParam<OptionCase> {
 protected:
  void run(int num_ranks, const std::function<void(Context&)>& body) {
    run_ranks_as_threads(num_ranks, body, {.backend = GetParam().backend, .timeout_s = 20});
  }
};

INSTANTIATE_TEST_SUITE_P(Every, ZeroWith, testing::ValuesIn(option_cases()), [](const auto& test) {
  return text("stage", static_cast<int>(test.param.stage), "_", test.param.backend);
});

TEST_P(ZeroWith, WorkingCopyHasBitsOfRepeatedRounding) {
  run(3, [](Context& context) {
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
      for (const int num_microbatches : {1, 3}) {
        TrainingOptions options{.zero = {.stage = GetParam().stage}, .num_microbatches = num_microbatches};
        options.autocast = type;
        OptionTraining exact(context, options);
        options.zero.working_type = type;
        OptionTraining rounded(context, options);
        for (int step = 0; step < 4; ++step) {
          EXPECT_EQ(rounded.step(step), exact.step(step)) << type << ", step " << step;
          EXPECT_TRUE(rounded.outputs().equal(exact.outputs())) << type << ", step " << step;
        }
        for (const auto& [name, piece] : rounded.pipe.parameters())
          EXPECT_EQ(piece.scalar_type(), at::kFloat) << name;
      }
    }
  });
}

TEST_P(ZeroWith, WorkingCopyCoversAutocastParameters) {
  run(2, [](Context& context) {
    OptionTraining rounded(context, {.zero = {.stage = GetParam().stage, .working_type = at::kBFloat16},
                                     .autocast = at::kBFloat16});
    const auto weights = rounded.weights();
    for (const char* name : {"0.inner.weight", "2.inner.weight", "3.inner.weight"})
      EXPECT_EQ(weights.at(name).scalar_type(), at::kBFloat16) << name;
    for (const char* name : {"0.inner.bias", "1.inner.weight", "1.inner.bias"})
      EXPECT_EQ(weights.at(name).scalar_type(), at::kFloat) << name;
  });
}

TEST_P(ZeroWith, WorkingCopyFollowsExternalWrites) {
  run(2, [](Context& context) {
    const at::NoGradGuard no_grad;
    OptionTraining rounded(context, {.zero = {.stage = GetParam().stage, .working_type = at::kBFloat16},
                                     .autocast = at::kBFloat16});
    const at::Tensor before = rounded.outputs();
    for (const double factor : {2.0, 0.5}) {
      context.world().barrier();  // other ranks may still compute with the weights that are written next
      for (const auto& [name, piece] : rounded.pipe.parameters()) {
        // Norms and biases are not rounded.
        if (name[0] != '1' && name.ends_with("weight")) piece.mul_(factor);
      }
      rounded.pipe.weights_changed();
      EXPECT_EQ(rounded.outputs().equal(before), factor == 0.5);
    }
  });
}

TEST_P(ZeroWith, FailedStepLeavesNothingInSums) {
  run(2, [](Context& context) {
    const TrainingOptions options{.zero = {.stage = GetParam().stage, .working_type = at::kBFloat16},
                                  .num_microbatches = 2,
                                  .autocast = at::kBFloat16};
    OptionTraining broken(context, options), untouched(context, options);
    int calls = 0;
    const auto refuse = [&](const at::Tensor& output, const at::Tensor& target) {
      const bool is_last = GetParam().stage != ZeroStage::kOptimizer || ++calls == 2;
      require(!is_last, "a loss of one's own says no");
      return mean_square_in_f32(output, target);
    };
    EXPECT_THROW(broken.pipe.step(test::numbers({6, 7}, 1), test::numbers({6, 3}, 2), refuse),
                 InvalidArgument);
    for (int step = 0; step < 2; ++step) EXPECT_EQ(broken.step(step), untouched.step(step));
    EXPECT_TRUE(broken.outputs().equal(untouched.outputs()));
  });
}

TEST(ZeroWorkingCopy, IsGatheredWithHalfTheBytes) {
  run_ranks_as_threads(2,
                       [](Context& context) {
                         const auto bytes = [&](std::optional<at::ScalarType> working_type) {
                           OptionTraining training(context, {.zero = {.stage = ZeroStage::kParameters,
                                                                      .working_type = working_type},
                                                             .num_microbatches = 1,
                                                             .autocast = at::kBFloat16});
                           const std::uint64_t first = context.world().recent_operations().back().number;
                           training.outputs();
                           std::map<std::string, std::int64_t> of_type;
                           for (const auto& operation : context.world().recent_operations()) {
                             if (operation.number > first && operation.operation == "all_gather")
                               of_type[operation.dtype] += operation.numel;
                           }
                           return of_type["f32"] * 4 + of_type["bf16"] * 2;
                         };
                         const auto exact = static_cast<double>(bytes(std::nullopt));
                         const auto rounded = static_cast<double>(bytes(at::kBFloat16));
                         // All but a norm's 2 x 130 of 7000 numbers, and the padding of small buckets.
                         EXPECT_LT(rounded, 0.6 * exact);
                         EXPECT_GT(rounded, 0.5 * exact);
                       },
                       {.backend = "gloo", .timeout_s = 20});
}

TEST_P(ZeroWith, FullGroupsStepLikeReplicas) {
  run(4, [](Context& context) {
    for (const int num_microbatches : {1, 2}) {
      OptionTraining replicas(context, {.num_microbatches = num_microbatches}),
          groups(
              context,
              {.zero = {.stage = GetParam().stage}, .num_microbatches = num_microbatches, .shard_ranks = 2});
      for (int step = 0; step < 3; ++step) {
        const double expected = replicas.step(step);
        EXPECT_NEAR(groups.step(step), expected, 1e-6 * expected);  // f32 sums are rounded
        EXPECT_TRUE(groups.outputs().allclose(replicas.outputs(), 1e-5, 1e-5)) << "step " << step;
      }
    }
  });
}

TEST_P(ZeroWith, GroupsHaveEveryParameterOnce) {
  run(4, [](Context& context) {
    OptionTraining groups(context, {.zero = {.stage = GetParam().stage}, .shard_ranks = 2});
    for (int step = 0; step < 2; ++step) groups.step(step);
    const Pieces pieces = groups.pipe.pieces();
    std::string mine;
    for (const auto& [name, piece] : groups.pipe.parameters()) {
      mine += text(name, ' ', pieces.at(name).begin, ' ', piece.numel(), ' ',
                   piece.detach().sum(at::kDouble).item<double>(), '\n');
    }
    const auto all = context.world().all_gather_text(mine);
    EXPECT_EQ(all[0], all[2]);
    EXPECT_EQ(all[1], all[3]);
    EXPECT_NE(all[0], all[1]);
  });
}

TEST_P(ZeroWith, KeptGradientsReduceOnceInOrder) {
  run(2, [](Context& context) {
    OptionTraining one(context, {.zero = {.stage = ZeroStage::kOptimizer}, .num_microbatches = 3});
    OptionTraining kept(context,
                        {.zero = {.stage = GetParam().stage, .keep_gradients = true}, .num_microbatches = 3});
    for (int step = 0; step < 3; ++step) EXPECT_EQ(kept.step(step), one.step(step));
    EXPECT_TRUE(kept.outputs().equal(one.outputs()));
  });
}

TEST(ZeroGathered, StagesRespectLimitWithSameBits) {
  run_ranks_as_threads(2,
                       [](Context& context) {
                         const auto unshards = [](const OptionTraining& training) {
                           return std::ranges::count_if(
                               training.pipe.program().ranks[0], [](const schedule::Action& action) {
                                 return action.kind == schedule::ActionKind::kUnshard;
                               });
                         };
                         TrainingOptions options{.zero = {.stage = ZeroStage::kParameters}};
                         OptionTraining two(context, options);
                         std::map<int, std::unique_ptr<OptionTraining>> others;
                         for (const int gathered : {1, 3, 0}) {
                           options.zero.gathered_stages = gathered;
                           others[gathered] = std::make_unique<OptionTraining>(context, options);
                         }
                         EXPECT_EQ(unshards(*others[0]), 4) << "one per stage";
                         EXPECT_LT(unshards(*others[3]), unshards(two));
                         EXPECT_GE(unshards(*others[1]), unshards(two));
                         for (int step = 0; step < 2; ++step) {
                           const double loss = two.step(step);
                           for (const auto& [gathered, other] : others)
                             EXPECT_EQ(other->step(step), loss) << gathered;
                         }
                         for (const auto& [gathered, other] : others) {
                           EXPECT_TRUE(other->outputs().equal(two.outputs())) << gathered;
                           for (const auto& [name, weight] : other->weights())
                             EXPECT_EQ(weight.numel(), 0) << name;
                         }
                         options.zero.gathered_stages = -1;
                         EXPECT_THROW(OptionTraining(context, options), InvalidArgument);
                       },
                       {.backend = "gloo", .timeout_s = 20});
}

TEST(ZeroPersistent, ParametersStayGatheredAndAreUpdated) {
  run_ranks_as_threads(
      3,
      [](Context& context) {
        TrainingOptions options{.zero = {.stage = ZeroStage::kParameters}};
        OptionTraining none(context, options);
        options.zero.persistent_below = 200;
        OptionTraining some(context, options);
        options.zero.persistent_below = 1 << 20;
        OptionTraining all(context, options);
        for (int step = 0; step < 3; ++step) {
          const double loss = none.step(step);
          EXPECT_EQ(some.step(step), loss);
          EXPECT_EQ(all.step(step), loss);
          for (const auto& [name, weight] : some.weights())
            EXPECT_EQ(weight.numel() > 0, !name.ends_with("inner.weight") || name[0] == '1' || name[0] == '3')
                << name;
          for (const auto& [name, weight] : all.weights()) EXPECT_GT(weight.numel(), 0) << name;
        }
        EXPECT_TRUE(some.outputs().equal(none.outputs()));
        EXPECT_TRUE(all.outputs().equal(none.outputs()));
      },
      {.backend = "gloo", .timeout_s = 20});
}

TEST(ZeroParameters, ParametersOfOtherStagesAreNamed) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        auto reaches_over = std::make_shared<bool>(true);
        std::vector<model::Layer> chain = layers_with_norm();
        const at::Tensor foreign = chain[0].parameters[0].second;
        chain[3].forward = [=, forward = chain[3].forward](const Fields& inputs) {
          const at::Tensor input = inputs.at(0);
          return forward(*reaches_over ? Fields(input + foreign.square().sum()) : inputs);
        };
        Pipeline pipe(context, {.pipeline = context.self(), .data = context.world()}, chain,
                      {.program = schedule::data_parallel(1, 4), .zero = {.stage = ZeroStage::kParameters}});
        const auto step = [&] {
          return pipe.step(test::numbers({6, 7}, 1), test::numbers({6, 3}, 2), mean_square_in_f32);
        };
        EXPECT_THAT(step, testing::ThrowsMessage<InvalidArgument>(testing::AllOf(
                              HasSubstr("parameter '0.inner.weight' is used"), HasSubstr("not gathered"))));
        *reaches_over = false;
        EXPECT_GT(step(), 0);
        EXPECT_GT(step(), 0);
      },
      {.backend = "gloo", .timeout_s = 20});
}

}  // namespace
}  // namespace trireme::parallel
