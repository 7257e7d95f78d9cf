// Sharded weights compared with replicas: the same steps with the same bits, for all stages and ways to
// gather the weights, and for second uses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/unit/parallel/small_models.h"
#include "tests/unit/parallel/stage_layers.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/model/deferred.h"
#include "trireme/model/initialise.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/allocated_bytes.h"
#include "trireme/parallel/data/gradient_hook.h"
#include "trireme/parallel/pipeline/pipeline.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using comm::run_ranks_as_threads;
using test::mean_square;
using testing::HasSubstr;

constexpr std::int64_t kSamples = 6;  // of each rank in a step

struct Case {
  ZeroStage stage = ZeroStage::kOptimizer;
  std::string backend = "threads";
  int num_ranks = 2;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const ZeroStage stage : {ZeroStage::kOptimizer, ZeroStage::kGradients, ZeroStage::kParameters}) {
    for (const char* backend : {"threads", "shm", "gloo"}) {
      for (const int num_ranks : {2, 3}) all.push_back({stage, backend, num_ranks});
    }
  }
  return all;
}

model::Layer tanh() {
  const auto module = std::make_shared<test::Module>();
  module->function = [](const at::Tensor& x) { return x.tanh(); };
  return test::layer_of(module);
}

/// No number of ranks divides the sizes. One layer is frozen, and one has no parameters.
std::vector<model::Layer> layers() {
  std::vector<model::Layer> result = {test::one(torch::nn::Linear(7, 13)), tanh(),
                                      test::one(torch::nn::Linear(13, 5)),
                                      test::one(torch::nn::Linear(5, 3))};
  for (auto& [name, parameter] : result[2].parameters) parameter.set_requires_grad(false);
  for (std::size_t i = 0; i < result.size(); ++i) {
    for (auto& [name, parameter] : result[i].parameters) name = text(i, '.', name);
  }
  return result;
}

at::Tensor input_of(const Context& context, int step) {
  return test::numbers({kSamples, 7}, 10 * step + context.rank());
}
at::Tensor target_of(const Context& context, int step) {
  return test::numbers({kSamples, 3}, 10 * step + context.rank() + 5);
}

/// An independent run: a pipeline of one rank, replicated over the world.
struct Training {
  Training(Context& context, ZeroStage stage, const std::string& optimizer_name, int num_microbatches = 2,
           int num_stages = 4)
      : world(context),
        pipe(context, {.pipeline = context.self(), .data = context.world()}, layers(),
             {.num_microbatches = 1,
              .program = schedule::data_parallel(num_microbatches, num_stages),
              .data_parallel = {.bucket_mib = 2e-4, .first_bucket_mib = 1e-4},
              .zero = {.stage = stage, .whole_tensors = optim::needs_whole_tensors(optimizer_name)}}),
        optimizer(optim::make_optimizer(
            {.name = optimizer_name, .lr = 0.05, .weight_decay = 0.01, .decay_1d = false, .momentum = 0.9},
            pipe.parameters())) {}
  double step(int number) {
    pipe.zero_grad();
    const double loss = pipe.step(input_of(world, number), target_of(world, number), mean_square);
    optimizer->step();
    return loss;
  }
  at::Tensor outputs() { return pipe.evaluate(input_of(world, 99)).at(0); }

  Context& world;
  Pipeline pipe;
  std::unique_ptr<optim::Optimizer> optimizer;
};

class Zero : public testing::TestWithParam<Case> {
 protected:
  void run(const std::function<void(Context&)>& body) {
    run_ranks_as_threads(GetParam().num_ranks, body, {.backend = GetParam().backend, .timeout_s = 20});
  }
};

std::string name_of_zero_case(const testing::TestParamInfo<Case>& test) {
  return text("stage", static_cast<int>(test.param.stage), "_", test.param.backend, "_",
              test.param.num_ranks);
}

INSTANTIATE_TEST_SUITE_P(Every, Zero, testing::ValuesIn(cases()), name_of_zero_case);

/// The cases for which `is_meant` is true.
std::vector<Case> cases_that(const std::function<bool(const Case&)>& is_meant) {
  std::vector<Case> meant;
  for (const Case& each : cases()) {
    if (is_meant(each)) meant.push_back(each);
  }
  return meant;
}

/// In other stages the whole weights are kept between uses.
class ZeroOfParameters : public Zero {};
INSTANTIATE_TEST_SUITE_P(Every, ZeroOfParameters, testing::ValuesIn(cases_that([](const Case& each) {
                           return each.stage == ZeroStage::kParameters;
                         })),
                         name_of_zero_case);

/// In other stages each rank reduces once, after the last micro-batch.
class ZeroOfGradients : public Zero {};
INSTANTIATE_TEST_SUITE_P(Every, ZeroOfGradients, testing::ValuesIn(cases_that([](const Case& each) {
                           return each.stage != ZeroStage::kOptimizer;
                         })),
                         name_of_zero_case);

/// Gloo adds the parts of three ranks in an order of its own.
class ZeroInOrder : public Zero {};
INSTANTIATE_TEST_SUITE_P(Every, ZeroInOrder, testing::ValuesIn(cases_that([](const Case& each) {
                           return each.backend != "gloo" || each.num_ranks == 2;
                         })),
                         name_of_zero_case);

TEST_P(Zero, StepsAsReplicasDo) {
  run([](Context& context) {
    for (const char* optimizer : {"sgd", "adamw", "lamb", "muon"}) {
      Training replicas(context, ZeroStage::kNone, optimizer), shards(context, GetParam().stage, optimizer);
      for (int step = 0; step < 3; ++step) {
        EXPECT_NEAR(shards.step(step), replicas.step(step), 1e-6);
        const at::Tensor found = shards.outputs(), expected = replicas.outputs();
        EXPECT_TRUE(found.allclose(expected, 1e-5, 1e-6)) << optimizer << ", step " << step;
      }
    }
  });
}

TEST_P(ZeroOfParameters, RankHoldsOneStageAndShare) {
  run([](Context& context) {
    constexpr int kLayers = 48;
    constexpr std::int64_t kWidth = 64, kLayerBytes = (kWidth + 1) * kWidth * 4;
    torch::nn::Sequential chain = model::deferred([&] {
      torch::nn::Sequential made;
      for (int i = 0; i < kLayers; ++i) made->push_back(torch::nn::Linear(kWidth, kWidth));
      return made;
    });
    const AllocatedBytes memory;
    const auto materialise = [&](const std::vector<model::Layer>& mine) {
      for (const model::Layer& layer : mine) model::materialise(layer);
      const model::FirstValuesOf those(mine);
      model::initialise(*chain, 3);
    };
    Pipeline pipe(context, {.pipeline = context.self(), .data = context.world()}, model::layers_of(chain),
                  {.num_microbatches = 1,
                   .program = schedule::data_parallel(1, kLayers),
                   .zero = {.stage = GetParam().stage},
                   .materialise = materialise});
    const std::int64_t share = kLayers * kLayerBytes / context.world().size();
    // The counter of this thread does not see the memory that gloo's threads free.
    const std::int64_t stages = (GetParam().backend == "gloo" ? 8 : 3) * kLayerBytes;
    EXPECT_LT(memory.peak(), share + stages) << "the stage, and the memory that it goes into";
    pipe.evaluate(at::ones({1, kWidth}));
    EXPECT_LT(memory.peak(), share + stages) << "two stages are gathered at a time";
  });
}

TEST_P(ZeroInOrder, HasTheBitsOfReplicas) {
  run([](Context& context) {
    Training replicas(context, ZeroStage::kNone, "adamw", 1), shards(context, GetParam().stage, "adamw", 1);
    for (int step = 0; step < 3; ++step) {
      EXPECT_EQ(shards.step(step), replicas.step(step));
      EXPECT_TRUE(shards.outputs().equal(replicas.outputs())) << "step " << step;
    }
  });
}

/// The second and the fourth layer are the same.
std::vector<model::Layer> tied_layers() {
  const torch::nn::Linear shared(5, 5);
  std::vector<model::Layer> result = {test::one(torch::nn::Linear(7, 5)), test::one(shared), tanh(),
                                      test::one(shared), test::one(torch::nn::Linear(5, 3))};
  for (std::size_t i = 0; i < result.size(); ++i) {
    for (auto& [name, parameter] : result[i].parameters) name = text(i == 3 ? 1 : i, '.', name);
  }
  return result;
}

TEST_P(Zero, ParameterOfSeveralStagesLearnsAsOne) {
  run([](Context& context) {
    const auto outputs_of = [&](ZeroStage stage, int num_stages) {
      Pipeline pipe(context, {.pipeline = context.self(), .data = context.world()}, tied_layers(),
                    {.num_microbatches = 1,
                     .program = schedule::data_parallel(2, num_stages),
                     .zero = {.stage = stage}});
      const auto optimizer =
          optim::make_optimizer({.name = "sgd", .lr = 0.05, .momentum = 0.9}, pipe.parameters());
      for (int step = 0; step < 3; ++step) {
        pipe.zero_grad();
        pipe.step(input_of(context, step), target_of(context, step), mean_square);
        optimizer->step();
      }
      return pipe.evaluate(input_of(context, 99)).at(0);
    };
    const at::Tensor expected = outputs_of(ZeroStage::kNone, 1);
    EXPECT_TRUE(outputs_of(ZeroStage::kNone, 5).allclose(expected, 1e-5, 1e-6));
    EXPECT_TRUE(outputs_of(GetParam().stage, 5).allclose(expected, 1e-5, 1e-6));
    EXPECT_TRUE(outputs_of(GetParam().stage, 2).allclose(expected, 1e-5, 1e-6));
  });
}

TEST_P(Zero, SharesEveryParameterOutOnce) {
  run([](Context& context) {
    Training shards(context, GetParam().stage, "sgd");
    const Pieces pieces = shards.pipe.pieces();
    std::string mine;
    std::int64_t held = 0;
    for (const auto& [name, tensor] : shards.pipe.parameters()) {
      const Piece& piece = pieces.at(name);
      EXPECT_EQ(tensor.dim(), static_cast<std::int64_t>(piece.global_sizes.size())) << name;
      EXPECT_EQ(tensor.sizes(), at::IntArrayRef(piece.sizes)) << name;
      for (std::int64_t i = 0; i < tensor.numel(); ++i) mine += text(name, ' ', piece.begin + i, '\n');
      held += tensor.numel();
    }
    std::vector<std::string> all;
    for (const std::string& of_rank : context.world().all_gather_text(mine)) {
      for (const std::string& element : split(of_rank, '\n')) {
        if (!element.empty()) all.push_back(element);
      }
    }
    std::ranges::sort(all);
    EXPECT_EQ(std::ranges::adjacent_find(all), all.end()) << "held twice";
    EXPECT_EQ(all.size(), 7 * 13 + 13 + 13 * 5 + 5 + 5 * 3 + 3);
    EXPECT_LT(held, static_cast<std::int64_t>(all.size()));
  });
}

TEST_P(Zero, AddsToGradientsThatAreThere) {
  run([](Context& context) {
    Training shards(context, GetParam().stage, "sgd", 1);
    shards.step(0);
    shards.pipe.zero_grad();
    shards.pipe.step(input_of(context, 1), target_of(context, 1), mean_square);
    std::map<std::string, at::Tensor> once;
    for (const auto& [name, piece] : shards.pipe.parameters()) {
      if (piece.grad().defined()) once[name] = piece.grad().clone();
    }
    shards.pipe.step(input_of(context, 1), target_of(context, 1), mean_square);
    for (const auto& [name, piece] : shards.pipe.parameters()) {
      if (!piece.grad().defined()) continue;
      EXPECT_TRUE(piece.grad().allclose(2 * once.at(name))) << name;
    }
  });
}

TEST_P(Zero, ContinuesAfterErrorBeforeAnyReduction) {
  run([](Context& context) {
    Training shards(context, GetParam().stage, "sgd"), untouched(context, GetParam().stage, "sgd");
    const auto refuse = [](const at::Tensor&, const at::Tensor&) -> at::Tensor {
      throw InvalidArgument("a loss of one's own says no");
    };
    EXPECT_THROW(shards.pipe.step(input_of(context, 0), target_of(context, 0), refuse), InvalidArgument);
    for (int step = 0; step < 2; ++step) {
      shards.step(step);
      untouched.step(step);
    }
    EXPECT_TRUE(shards.outputs().equal(untouched.outputs()));
  });
}

TEST_P(ZeroOfGradients, FailsByNameAfterPartialReduction) {
  run([](Context& context) {
    Training shards(context, GetParam().stage, "sgd");
    int calls = 0;
    const auto reject_the_second = [&](const at::Tensor& output, const at::Tensor& target) {
      require(++calls % 2 != 0, "a loss of one's own says no");
      return mean_square(output, target);
    };
    EXPECT_THROW(shards.pipe.step(input_of(context, 0), target_of(context, 0), reject_the_second),
                 InvalidArgument);
    EXPECT_THROW(shards.step(1), CommError);
  });
}

TEST_P(Zero, NamesUnreachedParameterAndContinues) {
  run([](Context& context) {
    auto reaches_all = std::make_shared<bool>(false);
    const test::Own own{.forward =
                            [reaches_all](const at::Tensor& x, const std::vector<at::Tensor>& p) {
                              return *reaches_all ? x.mm(p[0]) + p[1] : x.mm(p[0]);
                            },
                        .shapes = {{7, 3}, {3}}};
    std::vector<model::Layer> layers = own();
    layers[0].buffers.emplace_back("running", at::ones({3}));
    Pipeline pipe(context, {.pipeline = context.self(), .data = context.world()}, layers,
                  {.program = schedule::data_parallel(1), .zero = {.stage = GetParam().stage}});
    const auto step = [&] {
      pipe.zero_grad();
      return pipe.step(input_of(context, 0), target_of(context, 0), mean_square);
    };
    EXPECT_THAT(step, testing::ThrowsMessage<InvalidArgument>(
                          HasSubstr("did not reach these parameters on rank 0: 'p1'")));
    *reaches_all = true;
    EXPECT_GT(step(), 0);
  });
}

TEST_P(Zero, EvaluatesWithExternallyWrittenValues) {
  run([](Context& context) {
    const at::NoGradGuard no_grad;
    Training shards(context, GetParam().stage, "sgd");
    const at::Tensor before = shards.outputs();
    context.world().barrier();  // other ranks may still compute with the weights that are written next
    for (const auto& [name, piece] : shards.pipe.parameters()) piece.mul_(2);
    shards.pipe.weights_changed();
    const at::Tensor after = shards.outputs();
    EXPECT_FALSE(after.equal(before));
    context.world().barrier();
    for (const auto& [name, piece] : shards.pipe.parameters()) piece.div_(2);
    shards.pipe.weights_changed();
    EXPECT_TRUE(shards.outputs().equal(before));
  });
}

TEST_P(Zero, SkipsEvaluationOfOtherRanks) {
  run([](Context& context) {
    Training shards(context, GetParam().stage, "sgd");
    shards.step(0);
    if (context.is_main()) {
      shards.outputs();
    } else {
      shards.pipe.sit_out_evaluation();
    }
    EXPECT_TRUE(shards.outputs().defined());
  });
}

TEST(ZeroParameters, AreEmptyBetweenUsesWithoutCommonMemory) {
  run_ranks_as_threads(2,
                       [](Context& context) {
                         Training shards(context, ZeroStage::kParameters, "sgd");
                         shards.step(0);
                         for (const auto& [name, weight] : shards.pipe.weights())
                           EXPECT_EQ(weight.numel(), 0) << name;
                         shards.step(1);
                       },
                       {.backend = "gloo", .timeout_s = 20});
}

TEST(ZeroParameters, ShareMemoryOfAllLocalRanks) {
  run_ranks_as_threads(2, [](Context& context) {
    Training shards(context, ZeroStage::kParameters, "sgd");
    const void* mine = shards.pipe.weights().front().second.const_data_ptr();
    const auto all = context.world().all_gather_text(text(mine));
    EXPECT_EQ(all[0], all[1]);
  });
}

/// One layer that is large enough for its gradient to be allocated in the bucket.
struct LargeLayer {
  LargeLayer(Context& context, ZeroStage stage)
      : pipe(context, {.pipeline = context.self(), .data = context.world()},
             {test::one(torch::nn::Linear(96, 128))},
             {.program = schedule::data_parallel(1), .zero = {.stage = stage}}),
        optimizer(optim::make_optimizer({.name = "sgd", .lr = 0.1, .momentum = 0.9}, pipe.parameters())) {}
  at::Tensor step(int rank) {
    pipe.zero_grad();
    pipe.step(test::numbers({4, 96}, rank), test::numbers({4, 128}, rank + 7), mean_square);
    optimizer->step();
    return pipe.evaluate(test::numbers({4, 96}, 3)).at(0).clone();
  }
  Pipeline pipe;
  std::unique_ptr<optim::Optimizer> optimizer;
};

TEST(ZeroGradients, LeaveForeignTensorInTheirPlace) {
  run_ranks_as_threads(2, [](Context& context) {
    LargeLayer replicas(context, ZeroStage::kNone), shards(context, ZeroStage::kOptimizer);
    for (int step = 0; step < 2; ++step)
      EXPECT_TRUE(shards.step(context.rank()).equal(replicas.step(context.rank())));
    const at::Tensor weight = shards.pipe.weights().front().second;
    ASSERT_EQ(weight.dim(), 2);
    at::Tensor kept, as_it_was;
    weight.register_hook([&](const at::Tensor& gradient) {
      kept = gradient;
      as_it_was = gradient.clone();
      return gradient * 2;  // this result is in other memory
    });
    replicas.pipe.weights().front().second.register_hook(
        [](const at::Tensor& gradient) { return gradient * 2; });
    for (int step = 0; step < 2; ++step) {
      EXPECT_TRUE(shards.step(context.rank()).equal(replicas.step(context.rank())));
      EXPECT_TRUE(kept.equal(as_it_was));
    }
  });
}

TEST(ZeroGradients, LeaveTensorsMadeAfterThrowingBackward) {
  run_ranks_as_threads(2, [](Context& context) {
    LargeLayer shards(context, ZeroStage::kOptimizer);
    for (int step = 0; step < 2; ++step) shards.step(context.rank());
    const auto of_ordinary_memory = at::empty({128, 96}).storage().data_ptr().get_deleter();
    const auto breaks = [](const at::Tensor& output, const at::Tensor& target) {
      output.register_hook([](const at::Tensor&) -> at::Tensor { throw InvalidArgument("out of luck"); });
      return mean_square(output, target);
    };
    shards.pipe.zero_grad();
    EXPECT_THROW(shards.pipe.step(test::numbers({4, 96}, 1), test::numbers({4, 128}, 2), breaks),
                 InvalidArgument);
    const at::Tensor mine = at::empty({128, 96});
    EXPECT_EQ(mine.storage().data_ptr().get_deleter(), of_ordinary_memory);
  });
}

TEST(ZeroPrograms, GatherAroundAndAheadOfUse) {
  const PipelineOptions options{.program = schedule::data_parallel(1, 3),
                                .zero = {.stage = ZeroStage::kParameters}};
  EXPECT_EQ(schedule::to_csv(pipeline_program(options, 1, schedule::Transport::kBuffered)),
            "0UNSHARD,1UNSHARD,0F0,0RESHARD,2UNSHARD,1F0,2F0,2B0,2RESHARD,0UNSHARD,2REDUCE_GRAD,1B0,1RESHARD,"
            "1REDUCE_GRAD,0B0,0RESHARD,0REDUCE_GRAD,0STEP,1STEP,2STEP\n");
}

TEST(ZeroPrograms, OfAsynchronousSchedulesAreRejected) {
  EXPECT_THAT(
      [] {
        pipeline_program(
            {.schedule = "pipedream", .num_microbatches = 1, .zero = {.stage = ZeroStage::kOptimizer}}, 2,
            schedule::Transport::kBuffered);
      },
      testing::ThrowsMessage<InvalidArgument>(HasSubstr("leave zero at 0")));
}

}  // namespace
}  // namespace trireme::parallel
