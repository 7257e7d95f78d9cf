// run.exact: losses, norms and weights have the same bits, however eight micro-batches, four layers and the
// optimizer are split over ranks.

#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>

#include "tests/support/temporary_folder.h"
#include "tests/unit/train/tied_model.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/shared_folder.h"
#include "trireme/train/run/recovery.h"
#include "trireme/train/run/verify.h"
#include "trireme/train/step/internal/all_parts.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using comm::Context;
using comm::run_ranks_as_threads;
using testing::AllOf;
using testing::HasSubstr;

struct Way {
  const char* name;
  int ranks = 1;
  ParallelOptions parallel = {};
  std::int64_t accumulation = 1;
  const char* backend = "threads";
  std::vector<std::string> recomputed = {};
};

std::ostream& operator<<(std::ostream& out, const Way& way) { return out << way.name; }

RunConfig config_of(const Way& way, const std::string& precision = "fp32") {
  RunConfig config;
  config.run.exact = true;
  config.train = {
      .max_steps = 7, .global_batch = 24, .accumulation = way.accumulation, .precision = precision};
  config.train.clip_norm = 0.1;
  config.train.ema_decay = 0.5;
  config.train.recompute_layers = way.recomputed;
  config.optimizer = {.name = "adamw", .lr = 0.01, .weight_decay = 0};
  config.parallel = way.parallel;
  config.comm.timeout_s = 60;
  return config;
}

/// The lines of test::bits_of().
using Bits = std::vector<std::string>;

void take_steps(Trainer& trainer, int number, Bits& bits) {
  for (int i = 0; i < number; ++i) {
    trainer.step();
    bits.push_back(test::bits_of(*trainer.last_report()));
  }
}

Bits bits_on(const Way& way, const RunConfig& config) {
  const data::DataSource data = test::sequences();
  Bits bits;
  run_ranks_as_threads(way.ranks,
                       [&](Context& context) {
                         Trainer trainer(config, context, data, std::make_shared<test::Tied>());
                         Bits mine;
                         take_steps(trainer, 7, mine);
                         if (context.is_main()) bits = mine;
                       },
                       {.backend = way.backend});
  return bits;
}

const Way kOne{.name = "one", .accumulation = 8};

class ExactRuns : public testing::TestWithParam<Way> {};

TEST_P(ExactRuns, HaveTheBitsOfOneRank) {
  EXPECT_EQ(bits_on(GetParam(), config_of(GetParam())), bits_on(kOne, config_of(kOne)));
}

TEST_P(ExactRuns, HaveSerialBitsInHalfPrecision) {
  EXPECT_EQ(bits_on(GetParam(), config_of(GetParam(), "fp16")), bits_on(kOne, config_of(kOne, "fp16")));
}

INSTANTIATE_TEST_SUITE_P(
    All, ExactRuns,
    testing::Values(
        Way{"Dp2", 2, {}, 4}, Way{"Dp4Gloo", 4, {}, 2, "gloo"}, Way{"Dp8", 8, {}, 1},
        Way{"Dp2Zero1", 2, {.zero = 1}, 4}, Way{"Dp4Zero2", 4, {.zero = 2}, 2},
        Way{"Dp8Zero3", 8, {.zero = 3}, 1}, Way{"Dp2Zero3Gloo", 2, {.zero = 3}, 4, "gloo"},
        Way{"Dp4Zero3InPairs", 4, {.zero = 3, .shard_ranks = 2}, 2},
        Way{"Dp2Zero3Persistent", 2, {.zero = 3, .persistent_below = 20}, 4, "gloo"},
        Way{"Pp2", 2, {.pipeline = 2, .microbatches = 8}},
        Way{"Pp4Rounds", 4, {.pipeline = 4, .microbatches = 4}, 2},
        Way{"Pp2Gpipe", 2, {.pipeline = 2, .schedule = "gpipe", .microbatches = 8}},
        Way{"Pp2ZeroBubble", 2, {.pipeline = 2, .schedule = "zb-h1", .microbatches = 8}},
        Way{"Pp2ZbV", 2, {.pipeline = 2, .schedule = "zb-v", .microbatches = 8}},
        Way{"Pp2Interleaved",
            2,
            {.pipeline = 2, .schedule = "interleaved-1f1b", .chunks = 2, .microbatches = 8}},
        Way{"Dp2Pp2", 4, {.pipeline = 2, .microbatches = 4}},
        Way{"Dp4Pp2Zero2", 8, {.pipeline = 2, .microbatches = 2, .zero = 2}},
        Way{"Dp2Pp2Zero3Recompute", 4, {.pipeline = 2, .microbatches = 2, .recompute = true, .zero = 3}, 2},
        Way{"Dp2Recomputed", 2, {}, 4, "threads", {"up", "head"}}),
    [](const auto& instance) { return std::string(instance.param.name); });

// With three replicas and any number of micro-batches, the partial sums are those of the tree over all
// micro-batches.
TEST(ExactTraining, ThreeReplicasHaveTheBitsOfOne) {
  const Way three{.name = "three", .ranks = 3, .accumulation = 2}, one{.name = "one", .accumulation = 6};
  EXPECT_EQ(bits_on(three, config_of(three)), bits_on(one, config_of(one)));
}

TEST(ExactTraining, DrawsDistinctRepeatableNumbersPerLayer) {
  run_ranks_as_threads(1, [](Context& context) {
    const ParallelPlan plan = resolve_plan(config_of({.name = "one", .accumulation = 2}), 1);
    const PlanGroups groups = make_groups(plan, context);
    const data::DataSource data = test::sequences();
    test::Tied model;
    const std::unique_ptr<StepPart> exact = make_exact_sums({.plan = plan,
                                                             .context = context,
                                                             .groups = groups,
                                                             .data = data,
                                                             .model = model,
                                                             .whole = model,
                                                             .objective = nullptr,
                                                             .device = c10::kCPU});
    const auto draw = [](const Fields&) -> Fields { return at::rand({4}); };
    PipelineSetup setup{.plan = plan,
                        .groups = groups.of_pipeline(),
                        .layers = {{.name = "first", .forward = draw}, {.name = "second", .forward = draw}},
                        .options = {}};
    exact->configure(setup);
    const auto drawn = [&](std::int64_t step, int microbatch, std::size_t layer) {
      Step under_way;
      under_way.report.step = step;
      exact->begin_step(under_way);
      setup.options.before_compute(microbatch);
      return setup.layers[layer].forward(at::zeros({1})).at(0);
    };
    const at::Tensor numbers = drawn(3, 1, 0);
    EXPECT_TRUE(at::equal(drawn(3, 1, 0), numbers));
    EXPECT_FALSE(at::equal(drawn(4, 1, 0), numbers));
    EXPECT_FALSE(at::equal(drawn(3, 0, 0), numbers));
    EXPECT_FALSE(at::equal(drawn(3, 1, 1), numbers));
  });
}

TEST(ExactTraining, IsVerifiedWithoutAnyBound) {
  const data::DataSource data = test::sequences();
  run_ranks_as_threads(4, [&](Context& context) {
    const Way way{.name = "dp2 pp2", .parallel = {.pipeline = 2, .microbatches = 2, .zero = 3}};
    const OwnParts own{.make_model = [] { return std::make_shared<test::Tied>(); }, .objective = nullptr};
    const Comparison comparison = verify(config_of(way), context, data, 4, own);
    if (!context.is_main()) return;
    EXPECT_TRUE(comparison.equal()) << (comparison.first() ? comparison.first()->describe() : "unverified");
    EXPECT_EQ(comparison.bounds().loss, 0);
    EXPECT_EQ(comparison.bounds().gradient, 0);
    EXPECT_EQ(comparison.bounds().weight, 0);
  });
}

TEST(ExactTraining, CheckpointOfFourContinuesBitwiseWithTwo) {
  const test::TemporaryFolder folder;
  const data::DataSource data = test::sequences();
  const Way four{.name = "four", .ranks = 4, .parallel = {.zero = 3}, .accumulation = 2};
  const Way two{.name = "two", .ranks = 2, .parallel = {.pipeline = 2, .microbatches = 8}};
  const auto on = [&](const Way& way, const auto& work) {
    run_ranks_as_threads(way.ranks, [&](Context& context) {
      Trainer trainer(config_of(way), context, data, std::make_shared<test::Tied>());
      const std::vector<bool> all_see(static_cast<std::size_t>(context.world_size()), true);
      work(context, trainer, all_see);
    });
  };
  Bits begun, gone_on;
  on(four, [&](Context& context, Trainer& trainer, const std::vector<bool>& all_see) {
    Bits mine;
    take_steps(trainer, 4, mine);
    const Progress progress;
    checkpoint::SaveShares shares(context.world(), state_to_save(trainer, progress), all_see);
    const auto part = snapshot_of(trainer, shares, progress, trainer.plan().config());
    if (part) checkpoint::write_part(folder.path(), *part);
    context.world().barrier();
    if (context.is_main()) checkpoint::finish_checkpoint(folder.path(), *part, 1, [] { return false; });
    if (context.is_main()) begun = mine;
    context.world().barrier();
  });
  on(two, [&](Context& context, Trainer& trainer, const std::vector<bool>& all_see) {
    const auto found =
        checkpoint::find_latest_checkpoint(context.world(), folder.path(), all_see, Log("test"));
    ASSERT_TRUE(found.has_value());
    restore_state(trainer.state(), context, found->folder, all_see);
    trainer.seek(found->head.step);
    Bits mine;
    take_steps(trainer, 3, mine);
    if (context.is_main()) gone_on = mine;
  });
  begun.insert(begun.end(), gone_on.begin(), gone_on.end());
  EXPECT_EQ(begun, bits_on(kOne, config_of(kOne)));
}

// ---- rejections --------------------------------------------------------------------------------------

std::string refusal(
    int ranks, const std::function<void(RunConfig&)>& change,
    const std::function<std::shared_ptr<model::Model>()>& make = [] {
      return std::make_shared<test::Tied>();
    }) {
  RunConfig config = config_of({.name = "refused"});
  change(config);
  try {
    const data::DataSource data = test::sequences();
    run_ranks_as_threads(ranks,
                         [&](Context& context) { const Trainer trainer(config, context, data, make()); });
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing";
}

TEST(ExactRejections, NameTheReasonAndTheNearestPlan) {
  EXPECT_THAT(refusal(2, [](RunConfig& c) { c.train.accumulation = 3; }),
              AllOf(HasSubstr("each of 2 replicas has 3 micro-batches"), HasSubstr("a power of two"),
                    HasSubstr("works on 2 ranks: train.accumulation = 2")));
  EXPECT_THAT(refusal(4, [](RunConfig& c) { c.parallel = {.pipeline = 2, .microbatches = 6}; }),
              AllOf(HasSubstr("a power of two"), HasSubstr("parallel.microbatches = 4")));
  EXPECT_THAT(
      refusal(2, [](RunConfig& c) { c.parallel.compression = "bf16"; }),
      AllOf(HasSubstr("rounds the gradients of each rank"), HasSubstr("parallel.compression = \"none\"")));
  EXPECT_THAT(refusal(2,
                      [](RunConfig& c) {
                        c.parallel = {.pipeline = 2, .schedule = "pipedream"};
                        c.train.clip_norm = 0;
                      }),
              AllOf(HasSubstr("older weights"), HasSubstr("parallel.schedule = \"1f1b\"")));
  EXPECT_THAT(refusal(1, [](RunConfig& c) { c.learning_rate.schedule = "reduce_on_plateau"; }),
              AllOf(HasSubstr("the loss of evaluations"), HasSubstr("lr.schedule = \"constant\"")));
  EXPECT_THAT(refusal(2, [](RunConfig& c) { c.parallel.context = 2; }),
              AllOf(HasSubstr("parallel.context = 2"), HasSubstr("parallel.context = 1")));
  EXPECT_THAT(refusal(2, [](RunConfig& c) { c.parallel.tensor = 2; }),
              AllOf(HasSubstr("parallel.tensor = 2"), HasSubstr("parallel.tensor = 1")));
}

/// The norm counts its forwards.
struct Counting : test::Tied {
  Counting() { norm = register_module("norm", torch::nn::BatchNorm1d(test::kWidth)); }
  torch::nn::BatchNorm1d norm{nullptr};
};

/// A weight that layers in the middle share.
struct TiedWithin : test::Tied {
  std::vector<model::Layer> layers() override {
    auto all = Tied::layers();
    all[2].parameters = all[1].parameters;
    return all;
  }
};

TEST(ExactRejections, NameLayersThatDependOnRanks) {
  EXPECT_THAT(refusal(
                  2, [](RunConfig&) {}, [] { return std::make_shared<Counting>(); }),
              AllOf(HasSubstr("norm.running_mean is a running statistic"), HasSubstr("group norm")));
  EXPECT_THAT(refusal(
                  2, [](RunConfig& c) { c.parallel = {.pipeline = 2, .microbatches = 4}; },
                  [] { return std::make_shared<TiedWithin>(); }),
              AllOf(HasSubstr("up and down share up."), HasSubstr("parallel.pipeline = 1")));
}

}  // namespace
}  // namespace trireme::train
