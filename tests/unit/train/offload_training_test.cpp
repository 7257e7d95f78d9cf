// Runs with optimizer state in files: the bits of runs in memory for all combinations, checkpoints that
// either kind can resume from, and disks that fail.
#include <gmock/gmock.h>
#include <unistd.h>

#include "tests/support/scratch_files.h"
#include "tests/unit/train/small_runs.h"
#include "trireme/base/error.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/plan/parallel_plan.h"
#include "trireme/train/run/verify.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

class OffloadTraining : public SmallRuns {
 protected:
  /// Parts that are far smaller than the state.
  static RunConfig offloaded(RunConfig config) {
    config.run.name += "-offloaded";
    config.offload.optimizer = "files";
    config.offload.part_mib = 0.001;
    return config;
  }

  void expect_same_bits(int ranks, const RunConfig& config) const {
    const RunResult expected = run(ranks, config), found = run(ranks, offloaded(config));
    EXPECT_EQ(found.weights_xxh3, expected.weights_xxh3) << config.run.name;
    EXPECT_EQ(found.train_loss, expected.train_loss) << config.run.name;
    EXPECT_EQ(found.evaluation->loss, expected.evaluation->loss) << config.run.name;
    EXPECT_GT(found.memory.offloaded_bytes, 0) << config.run.name;
    EXPECT_EQ(expected.memory.offloaded_bytes, 0) << config.run.name;
  }
};

TEST_F(OffloadTraining, GivesTheSameBitsWithEveryOptimizer) {
  for (const std::string& name : optim::optimizer_names()) {
    RunConfig each = config(name);
    each.optimizer = {.name = name, .lr = 0.01, .weight_decay = 0.01, .decay_1d = false, .momentum = 0.9};
    expect_same_bits(1, each);
  }
}

TEST_F(OffloadTraining, KeepsBitsWithAllStepOptions) {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    RunConfig each = config(precision);
    each.train.precision = precision;
    each.train.accumulation = 2;
    each.train.ema_decay = 0.9;
    each.eval.every_steps = 4;
    expect_same_bits(1, each);
  }
}

TEST_F(OffloadTraining, KeepsBitsForAnyReplicaSharding) {
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    for (const char* precision : {"fp32", "bf16"}) {
      RunConfig each = config(text("zero", zero, precision));
      each.parallel.zero = zero;
      each.train.precision = precision;
      expect_same_bits(2, each);
    }
  }
}

TEST_F(OffloadTraining, KeepsBitsWithParameterShards) {
  for (const char* state : {"none", "files"}) {
    for (const char* precision : {"fp32", "bf16"}) {
      RunConfig in_memory = config(text(state, precision));
      in_memory.parallel.zero = 3;
      in_memory.parallel.persistent_below = 20;
      in_memory.train.precision = precision;
      in_memory.train.accumulation = 2;
      RunConfig elsewhere = offloaded(in_memory);
      elsewhere.offload.optimizer = state;
      elsewhere.offload.parameters = "files";
      for (const int ranks : {2, 3}) {
        const RunResult expected = run(ranks, in_memory), found = run(ranks, elsewhere);
        EXPECT_EQ(found.weights_xxh3, expected.weights_xxh3) << in_memory.run.name << " on " << ranks;
        EXPECT_EQ(found.evaluation->loss, expected.evaluation->loss) << in_memory.run.name << " on " << ranks;
        EXPECT_GT(found.memory.offloaded_bytes, 0) << in_memory.run.name;
      }
    }
  }
}

TEST_F(OffloadTraining, ParameterShardsResumeFromEitherKind) {
  RunConfig straight = config("shards-straight");
  straight.parallel.zero = 3;
  const RunResult expected = run(2, straight);
  RunConfig walking = straight;
  walking.run.name = "shards-walking";
  for (const std::int64_t until : {4, 8, 12}) {
    walking.offload.optimizer = walking.offload.parameters = until == 8 ? "none" : "files";
    walking.train.max_steps = until;
    const RunResult found = run(2, walking, until == 4 ? RunStart::kFresh : RunStart::kResume);
    EXPECT_EQ(found.steps, until);
    if (until == 12) {
      EXPECT_EQ(found.weights_xxh3, expected.weights_xxh3);
    }
  }
}

TEST_F(OffloadTraining, VerifyComparesParameterShardsWithOneRank) {
  RunConfig each = config("verify-shards");
  each.parallel.zero = 3;
  each.train.clip_norm = 0;  // because a norm is summed by pieces
  each.offload.optimizer = each.offload.parameters = "files";
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const data::DataSource data = train::open_data(each, context.log());
    const Comparison comparison = verify(each, context, data, 5);
    if (context.is_main()) {
      EXPECT_TRUE(comparison.bitwise());
    }
  });
}

TEST_F(OffloadTraining, RejectsUnsupportedOffloadWithNearestPlan) {
  RunConfig each = config("refused");
  each.offload.parameters = "files";
  const auto refused = [&](int ranks, const char* reason, const char* cure) {
    EXPECT_THAT([&] { resolve_plan(each, ranks); },
                ThrowsMessage<InvalidArgument>(AllOf(HasSubstr(reason), HasSubstr(cure))));
  };
  refused(2, "with parallel.zero = 0: weights are kept whole", "works on 2 ranks: parallel.zero = 3");
  each.parallel.zero = 3;
  refused(1, "one rank has the weights", "works on 1 rank: offload.parameters = \"none\"");
  each.train.ema_decay = 0.9;
  refused(2, "averages and weights change places", "train.ema_decay = 0.0");
  each.train.ema_decay = 0;
  resolve_plan(each, 2);
  each.offload.part_mib = 0;
  refused(2, "offload.part_mib = 0", "");
}

TEST_F(OffloadTraining, GivesTheSameBitsInPipelines) {
  RunConfig each = config("pipeline");
  each.parallel.pipeline = 2;
  expect_same_bits(2, each);
  each.run.name = "asynchronous";
  each.parallel.schedule = "pipedream";
  each.train.clip_norm = 0;
  expect_same_bits(2, each);
}

TEST_F(OffloadTraining, ContinuesFromACheckpointOfEitherKind) {
  for (const bool asynchronous : {true, false}) {
    for (const int ranks : {1, 2}) {
      RunConfig straight = config(text("straight", ranks, asynchronous));
      straight.parallel.zero = ranks == 2 ? 1 : 0;
      straight.checkpoint.asynchronous = asynchronous;
      const RunResult expected = run(ranks, straight);
      RunConfig walking = straight;
      walking.run.name += "-walking";
      walking.checkpoint.every_steps = 2;
      for (const std::int64_t until : {4, 8, 12}) {
        walking.train.max_steps = until;
        RunConfig leg = until == 8 ? walking : offloaded(walking);
        leg.run.name = walking.run.name;
        const RunResult found = run(ranks, leg, until == 4 ? RunStart::kFresh : RunStart::kResume);
        EXPECT_EQ(found.steps, until);
        if (until == 12) {
          EXPECT_EQ(found.weights_xxh3, expected.weights_xxh3) << straight.run.name;
        }
      }
    }
  }
}

TEST_F(OffloadTraining, LeavesItsFolderAsFound) {
  RunConfig each = offloaded(config("folder"));
  each.offload.folder = (folder_ / "scratch").string();
  std::filesystem::create_directory(folder_ / "scratch");
  write_file_atomic(folder_ / "scratch" / "trireme-scratch-abcdef", "of another time");
  run(2, each);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ / "scratch"), {}), 1);
  EXPECT_TRUE(test::scratch_files_of(::getpid()).empty());
  run(1, offloaded(config("default")));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "default-offloaded.1"))
      << "a fresh run found a folder that was used";
}

TEST_F(OffloadTraining, VerifyHoldsOneRankToMemory) {
  RunConfig each = offloaded(config("verify"));
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    const data::DataSource data = train::open_data(each, context.log());
    Comparison comparison = verify(each, context, data, 5);
    EXPECT_TRUE(comparison.bitwise());
    EXPECT_EQ(comparison.num_steps(), 5);
  });
}

TEST_F(OffloadTraining, FailedDiskEndsRunButNotNext) {
  const RunConfig each = offloaded(config("failing"));
  std::unique_ptr<test::FileSizeLimit> limit;
  callbacks_.on_step = [&](const StepReport& report) {
    if (report.step == 3) limit = std::make_unique<test::FileSizeLimit>(2000);
  };
  EXPECT_THAT([&] { run(1, each); }, ThrowsMessage<DataError>(AllOf(HasSubstr("rank 0: cannot write"),
                                                                    HasSubstr("optimizer's state"),
                                                                    HasSubstr(each.run_folder().string()))));
  limit.reset();
  callbacks_ = {};
  EXPECT_EQ(run(1, each).weights_xxh3, run(1, config("works")).weights_xxh3);
}

TEST_F(OffloadTraining, RejectsFullFolderBeforeStep) {
  const test::FileSizeLimit limit(2000);
  EXPECT_THAT([&] { run(1, offloaded(config("full"))); },
              ThrowsMessage<DataError>(AllOf(HasSubstr("rank 0: cannot reserve"), HasSubstr("are free"))));
}

/// Activations that are large enough to be offloaded.
RunConfig activating(RunConfig config) {
  config.model.hidden = {512, 512};
  config.train.global_batch = 256;
  config.train.max_steps = 3;
  config.checkpoint.every_steps = 0;
  config.optimizer = {.name = "sgd", .lr = 0.05, .momentum = 0.9};
  return config;
}

RunConfig activations_elsewhere(RunConfig config) {
  config.run.name += "-elsewhere";
  config.offload.activations = "files";
  config.offload.part_mib = 0.1;
  return config;
}

TEST_F(OffloadTraining, ActivationsElsewhereGiveTheSameBits) {
  const auto expect_same = [&](int ranks, const RunConfig& config) {
    const RunResult expected = run(ranks, config), found = run(ranks, activations_elsewhere(config));
    EXPECT_EQ(found.weights_xxh3, expected.weights_xxh3) << config.run.name;
    EXPECT_EQ(found.train_loss, expected.train_loss) << config.run.name;
    EXPECT_EQ(found.evaluation->loss, expected.evaluation->loss) << config.run.name;
    EXPECT_GE(found.memory.offloaded_bytes, 256 * 1024) << config.run.name;
  };
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    RunConfig each = activating(config(precision));
    each.train.precision = precision;
    expect_same(1, each);
    each.run.name += "-zero3";
    each.parallel.zero = 3;
    expect_same(2, each);
  }
  RunConfig recomputed = activating(config("recomputed"));
  recomputed.train.recompute_layers = {"*"};
  expect_same(1, recomputed);
  for (const char* schedule : {"1f1b", "gpipe", "zb-h1"}) {
    RunConfig each = activating(config(schedule));
    each.parallel.pipeline = 2;
    each.parallel.microbatches = 4;
    each.train.global_batch = 1024;
    each.parallel.schedule = schedule;
    expect_same(2, each);
  }
}

TEST_F(OffloadTraining, VerifyComparesOffloadedActivationsWithMemory) {
  RunConfig each = activations_elsewhere(activating(config("verify-activations")));
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    const data::DataSource data = train::open_data(each, context.log());
    EXPECT_TRUE(verify(each, context, data, 3).bitwise());
  });
}

TEST_F(OffloadTraining, FullActivationFolderEndsOnlyItsRun) {
  const RunConfig each = activations_elsewhere(activating(config("full-of-activations")));
  {
    const test::FileSizeLimit limit(100'000);
    EXPECT_THAT([&] { run(1, each); }, ThrowsMessage<DataError>(AllOf(
                                           HasSubstr("rank 0: cannot reserve"), HasSubstr("of activations"),
                                           HasSubstr(each.run_folder().string()))));
  }
  EXPECT_EQ(run(1, each).weights_xxh3, run(1, activating(config("in-memory"))).weights_xxh3);
}

TEST_F(OffloadTraining, RejectsUnsupportedActivationsWithNearestPlan) {
  RunConfig each = activating(config("refused-activations"));
  const auto refused = [&](const char* reason, const char* cure) {
    EXPECT_THAT([&] { resolve_plan(each, 2); },
                ThrowsMessage<InvalidArgument>(AllOf(HasSubstr(reason), HasSubstr(cure))));
  };
  each.offload.activations = "host";
  refused("this run computes on the CPU", "works on 2 ranks: offload.activations = \"files\"");
  each.offload.activations = "files";
  each.parallel.recompute = true;
  each.parallel.pipeline = 2;
  refused("stages keep nothing but their inputs", "train.recompute_layers = [\"*\"]");
  each.offload.activations = "disk";
  refused("disk", "files");
}

}  // namespace
}  // namespace trireme::train
