// ZeRO runs: the numbers of replicas, checkpoints that any number of ranks reads, evaluations of averages,
// and configurations that are rejected.
#include <gmock/gmock.h>

#include <map>

#include "tests/unit/train/small_runs.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/weights_file.h"
#include "trireme/parallel/zero/shard_hook.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/plan/parallel_plan.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::HasSubstr;

class ZeroTraining : public SmallRuns {
 protected:
  RunConfig zero_config(const std::string& name, std::int64_t zero) const {
    RunConfig result = config(name);
    result.parallel.zero = zero;
    result.optimizer.weight_decay = 0.1;
    result.optimizer.decay_1d = false;
    return result;
  }

  checkpoint::TensorMap weights_of(const RunResult& result) const {
    return checkpoint::load_weights_file(result.folder / "model.safetensors").tensors;
  }

  /// Equal up to the rounding of sums in another order.
  void expect_near(const RunResult& found, const RunResult& expected) const {
    const checkpoint::TensorMap ours = weights_of(found), theirs = weights_of(expected);
    ASSERT_EQ(ours.size(), theirs.size());
    for (const auto& [name, tensor] : theirs) EXPECT_TRUE(ours.at(name).allclose(tensor, 1e-3, 1e-5)) << name;
    EXPECT_NEAR(found.evaluation->loss, expected.evaluation->loss, 1e-4);
  }
};

TEST_F(ZeroTraining, EveryShardingGivesSameModel) {
  const RunResult replicas = run(3, zero_config("replicas", 0));
  for (const std::int64_t zero : {1, 2, 3})
    expect_near(run(3, zero_config(text("zero", zero), zero)), replicas);
}

TEST_F(ZeroTraining, CheckpointChangesRanksAndStages) {
  const RunResult straight = run(1, zero_config("straight", 0));
  RunConfig walking = zero_config("walking", 2);
  walking.checkpoint.every_steps = 3;
  walking.train.max_steps = 3;
  run(3, walking);
  struct Leg {
    int ranks;
    std::int64_t zero;
  };
  RunResult last;
  for (const auto& [ranks, zero] : {Leg{2, 3}, Leg{1, 0}, Leg{2, 1}}) {
    walking.train.max_steps += 3;
    walking.parallel.zero = zero;
    last = run(ranks, walking, RunStart::kResume);
    EXPECT_EQ(last.steps, walking.train.max_steps);
  }
  expect_near(last, straight);
}

TEST_F(ZeroTraining, ResumedRunHasSameBits) {
  for (const std::int64_t zero : {1, 2, 3}) {
    RunConfig whole = zero_config(text("whole", zero), zero), cut = zero_config(text("cut", zero), zero);
    whole.train.ema_decay = cut.train.ema_decay = 0.9;
    const RunResult straight = run(2, whole);
    const std::int64_t all = cut.train.max_steps;
    cut.train.max_steps = 6;
    run(2, cut);
    cut.train.max_steps = all;
    EXPECT_EQ(run(2, cut, RunStart::kResume).weights_xxh3, straight.weights_xxh3) << zero;
  }
}

TEST_F(ZeroTraining, WorkingCopyChangesNoBit) {
  for (const char* precision : {"bf16", "fp16"}) {
    for (const std::int64_t zero : {1, 3}) {
      RunConfig config = zero_config(text(precision, zero), zero);
      config.train.precision = precision;
      config.train.accumulation = 2;
      config.train.ema_decay = 0.9;
      config.train.clip_norm = 0;  // the norm is summed by pieces, which differ
      config.parallel.working_copy = false;
      const RunResult exact = run(2, config);
      config.run.name += "-copy";
      config.parallel.working_copy = true;
      EXPECT_EQ(run(2, config).weights_xxh3, exact.weights_xxh3) << precision << ", zero " << zero;
    }
  }
}

TEST_F(ZeroTraining, WorkingCopyCheckpointHasExactValues) {
  RunConfig straight = zero_config("copy-straight", 2);
  straight.train.precision = "bf16";
  straight.train.clip_norm = 0;  // because the norm is summed by pieces
  const RunResult expected = run(2, straight);
  RunConfig walking = straight;
  walking.run.name = "copy-walking";
  walking.train.max_steps = 3;
  run(2, walking);
  walking.parallel.zero = 3;
  walking.train.max_steps = 6;
  run(2, walking, RunStart::kResume);
  walking.parallel.zero = 0;
  walking.train.max_steps = straight.train.max_steps;
  EXPECT_EQ(run(2, walking, RunStart::kResume).weights_xxh3, expected.weights_xxh3);
}

TEST_F(ZeroTraining, ReplicaGroupsContinueFromAnyMesh) {
  const RunResult straight = run(1, zero_config("groups-straight", 0));
  RunConfig walking = zero_config("groups-walking", 2);
  walking.parallel.shard_ranks = 2;
  walking.train.max_steps = 3;
  run(4, walking);
  struct Leg {
    int ranks;
    std::int64_t zero, shard_ranks;
  };
  RunResult last;
  for (const auto& [ranks, zero, shard_ranks] : {Leg{3, 3, 0}, Leg{4, 3, 2}, Leg{1, 0, 0}}) {
    walking.train.max_steps += 3;
    walking.parallel.zero = zero;
    walking.parallel.shard_ranks = shard_ranks;
    last = run(ranks, walking, RunStart::kResume);
    EXPECT_EQ(last.steps, walking.train.max_steps);
  }
  expect_near(last, straight);
}

TEST_F(ZeroTraining, EvaluatesMovingAverages) {
  RunConfig replicas = zero_config("averages0", 0), shards = zero_config("averages3", 3);
  for (RunConfig* each : {&replicas, &shards}) {
    each->train.ema_decay = 0.8;
    each->eval.every_steps = 4;
  }
  expect_near(run(2, shards), run(2, replicas));
}

TEST_F(ZeroTraining, OverflowOnShardSkipsStepEverywhere) {
  RunConfig config = zero_config("overflow", 2);
  config.train.precision = "fp16";
  // The scale falls slowly from a value at which every gradient overflows. On its way, a few gradients
  // overflow in some steps.
  config.scaler = {.initial = 0x1p40, .factor = 1.5, .most = 0x1p40};
  config.train.max_steps = 60;
  config.train.epochs = 60;
  config.train.max_skipped_steps = 60;
  const data::DataSource data = open_data(config);
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    Trainer trainer(config, context, data);
    std::string skipped;
    while (!trainer.finished()) {
      if (const auto report = trainer.step()) skipped += report->skipped ? "s" : ".";
    }
    const auto all = context.world().all_gather_text(skipped);
    EXPECT_EQ(all[0], all[1]);
    EXPECT_THAT(skipped, HasSubstr("s."));
    EXPECT_EQ(trainer.not_finite(), "");
  });
}

TEST_F(ZeroTraining, WholeTensorOptimizersGetWholeTensors) {
  for (const char* optimizer : {"lamb", "lars", "muon"}) {
    RunConfig replicas = zero_config(text(optimizer, 0), 0), shards = zero_config(text(optimizer, 2), 2);
    replicas.optimizer.name = shards.optimizer.name = optimizer;
    expect_near(run(2, shards), run(2, replicas));
  }
}

TEST_F(ZeroTraining, ShardedParametersMakeLayersStages) {
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    RunConfig config = zero_config("layers", 3);
    config.model.hidden = {8, 9, 10};
    const data::DataSource data = open_data(config);
    Trainer trainer(config, context, data);
    EXPECT_EQ(trainer.pipeline().stages().size(), trainer.model().layers().size());
  });
}

TEST(ZeroPlans, UnsupportedCompressionsNameAlternatives) {
  const auto refusal = [](const std::string& compression, int ranks, const auto& change) {
    RunConfig config;
    config.parallel.zero = 2;
    config.parallel.compression = compression;
    change(config);
    try {
      resolve_plan(config, ranks);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  const auto sgd = [](RunConfig& c) { c.optimizer.name = "sgd"; };
  for (const std::string& name : parallel::shard_hook_names()) EXPECT_EQ(refusal(name, 2, sgd), "none");
  const auto adamw = [](RunConfig& c) {
    c.optimizer.name = "adamw";
    c.train.clip_norm = 0;
    c.parallel.compression_warmup_steps = 5;
  };
  EXPECT_THAT(
      refusal("one-bit", 2, adamw),
      testing::AllOf(HasSubstr("the whole momentum is sent"),
                     HasSubstr("the nearest plan that works on 2 ranks: parallel.compression = \"sign\"")));
  const auto two_reductions = [&](RunConfig& c) {
    sgd(c);
    c.train.accumulation = 2;
  };
  EXPECT_THAT(refusal("dgc", 2, two_reductions),
              testing::AllOf(HasSubstr("each of 2 micro-batches is reduced by itself"),
                             HasSubstr("works on 2 ranks: parallel.keep_gradients = true")));
  EXPECT_EQ(refusal("power-sgd", 2, two_reductions), "none");
  EXPECT_THAT(refusal("dgc", 2,
                      [&](RunConfig& c) {
                        sgd(c);
                        c.train.clip_norm = 0;
                        c.parallel.compression_clip_norm = 1;
                      }),
              testing::AllOf(HasSubstr("sharded gradients are sent as they are computed"),
                             HasSubstr("works on 2 ranks: parallel.zero = 0")));
  EXPECT_THAT(refusal("int8", 4, [](RunConfig& c) { c.parallel.shard_ranks = 2; }),
              HasSubstr("the nearest plan that works on 4 ranks: parallel.shard_ranks = 0"));
}

TEST(ZeroPlans, InvalidShardGroupsListValidOnes) {
  RunConfig config;
  config.train.global_batch = 64;
  config.parallel.zero = 2;
  config.parallel.shard_ranks = 4;
  EXPECT_THAT([&] { resolve_plan(config, 6); },
              testing::ThrowsMessage<InvalidArgument>(testing::AllOf(
                  HasSubstr("parallel.shard_ranks = 4 does not cut 6 replicas into groups"),
                  HasSubstr("the nearest plan that works on 6 ranks: parallel.shard_ranks = 3"))));
  config.parallel.zero = 0;
  config.parallel.shard_ranks = 2;
  EXPECT_THAT([&] { resolve_plan(config, 6); },
              testing::ThrowsMessage<InvalidArgument>(
                  HasSubstr("the nearest plan that works on 6 ranks: parallel.zero = 1")));
  config.parallel.zero = 3;
  EXPECT_TRUE(resolve_plan(config, 6).has_shard_groups());
  EXPECT_FALSE(resolve_plan(config, 2).has_shard_groups());
}

TEST(ZeroPlans, OfAsynchronousSchedulesAreRejected) {
  RunConfig config;
  config.parallel = {.pipeline = 2, .schedule = "pipedream", .zero = 1};
  EXPECT_THAT([&] { resolve_plan(config, 2); },
              testing::ThrowsMessage<InvalidArgument>(HasSubstr("leave zero at 0")));
}

}  // namespace
}  // namespace trireme::train
