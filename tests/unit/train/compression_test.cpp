// Training with compressed gradients. It converges, resumes from a checkpoint with the same bits, and keeps
// residuals if the number of ranks changes.

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

#include <map>

#include "tests/support/trainer_state.h"
#include "tests/unit/train/compressed_runs.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/shard_reader.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/train/plan/parallel_plan.h"
#include "trireme/train/run/verify.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

class EachCompression : public CompressedTraining, public testing::WithParamInterface<std::string> {};
INSTANTIATE_TEST_SUITE_P(Table, EachCompression, testing::ValuesIn(test::lossy_compressions()),
                         test::name_of_codec);

TEST_P(EachCompression, ContinuesFromCheckpointWithSameBits) {
  RunConfig whole = compressed("whole", GetParam()), part = compressed("part", GetParam());
  const std::string expected = run(2, whole).weights_xxh3;
  part.train.max_steps = 6;
  run(2, part);
  part.train.max_steps = 12;
  EXPECT_EQ(run(2, part, RunStart::kResume).weights_xxh3, expected);
}

TEST_P(EachCompression, ReachesTheAccuracyOfUncompressedTraining) {
  RunConfig plain = compressed("plain", "none"), less = compressed("less", GetParam());
  plain.optimizer = less.optimizer;
  if (GetParam() == "one-bit") less.parallel.compression_warmup_steps = 30;
  for (RunConfig* each : {&plain, &less}) {
    each->train.epochs = 20;
    each->train.max_steps = 120;
  }
  const double reached = run(2, plain).evaluation->metric("accuracy").value;
  EXPECT_GT(reached, 0.9);
  EXPECT_GT(run(2, less).evaluation->metric("accuracy").value, reached - 0.02);
}

TEST_F(CompressedTraining, OneBitLambContinuesAroundWarmUp) {
  for (const std::int64_t warmup : {4, 8}) {
    RunConfig whole = compressed(text("whole", warmup), "one-bit"), part = whole;
    for (RunConfig* each : {&whole, &part}) {
      each->optimizer.name = "lamb";
      each->parallel.compression_warmup_steps = warmup;
    }
    part.run.name = text("part", warmup);
    part.train.max_steps = 6;
    const std::string expected = run(2, whole).weights_xxh3;
    run(2, part);
    part.train.max_steps = 12;
    EXPECT_EQ(run(2, part, RunStart::kResume).weights_xxh3, expected) << warmup;
  }
}

TEST_F(CompressedTraining, OneRankHasMomentumOfItsOptimizer) {
  EXPECT_EQ(run(1, compressed("dgc", "dgc")).weights_xxh3, run(1, compressed("none", "none")).weights_xxh3);
  RunConfig uncompressed = compressed("adamw", "one-bit");
  uncompressed.parallel.compression = "none";
  EXPECT_EQ(run(1, compressed("one-bit", "one-bit")).weights_xxh3, run(1, uncompressed).weights_xxh3);
}

class DgcWithoutMomentumCorrection : public CompressedTraining,
                                     public testing::WithParamInterface<const char*> {
 protected:
  RunConfig with_moments(const std::string& name, const std::string& compression) const {
    RunConfig result = compressed(name, compression);
    result.optimizer = {.name = GetParam(), .lr = 0.01};
    return result;
  }
};
INSTANTIATE_TEST_SUITE_P(Optimizers, DgcWithoutMomentumCorrection,
                         testing::Values("adam", "adamw", "lamb", "rmsprop"));

TEST_P(DgcWithoutMomentumCorrection, IsTopKWithErrorFeedback) {
  const std::string expected = run(2, with_moments("top-k", "top-k")).weights_xxh3;
  EXPECT_EQ(run(2, with_moments("dgc", "dgc")).weights_xxh3, expected);
  EXPECT_NE(run(2, with_moments("none", "none")).weights_xxh3, expected);
  EXPECT_THAT(file("dgc", "summary.json"),
              HasSubstr(text("dgc (without momentum correction: ", GetParam(), " has moments of its own)")));
}

TEST_P(DgcWithoutMomentumCorrection, ContinuesFromCheckpointWithSameBits) {
  RunConfig part = with_moments("part", "dgc");
  const std::string expected = run(2, with_moments("whole", "dgc")).weights_xxh3;
  part.train.max_steps = 6;
  run(2, part);
  part.train.max_steps = 12;
  EXPECT_EQ(run(2, part, RunStart::kResume).weights_xxh3, expected);
}

/// There is no velocity that each reduction of shards would advance.
TEST_P(DgcWithoutMomentumCorrection, ReducesShardsOfEachMicrobatch) {
  RunConfig shards = with_moments("shards", "dgc");
  if (shards.optimizer.name == "lamb") shards.optimizer.name = "adamw";
  shards.parallel.zero = 2;
  shards.train.accumulation = 2;
  RunConfig part = shards;
  part.run.name = "part";
  const std::string expected = run(2, shards).weights_xxh3;
  part.train.max_steps = 6;
  run(2, part);
  part.train.max_steps = 12;
  EXPECT_EQ(run(2, part, RunStart::kResume).weights_xxh3, expected);
}

TEST_F(CompressedTraining, DgcLearnsWithAdamW) {
  RunConfig plain = compressed("plain", "none"), less = compressed("less", "dgc");
  for (RunConfig* each : {&plain, &less}) {
    each->optimizer = {.name = "adamw", .lr = 0.01};
    each->train.epochs = 20;
    each->train.max_steps = 120;
  }
  const double reached = run(2, plain).evaluation->metric("accuracy").value;
  EXPECT_GT(reached, 0.9);
  EXPECT_GT(run(2, less).evaluation->metric("accuracy").value, reached - 0.02);
}

TEST_F(CompressedTraining, TellsTheBytesThatItSends) {
  const std::int64_t plain = run(2, compressed("plain", "none")).sent_bytes_of_step;
  EXPECT_NEAR(static_cast<double>(plain), 4 * (784 * 32 + 32 + 32 * 10 + 10), 512)
      << "of two ranks, all of it";
  const std::int64_t less = run(2, compressed("less", "top-k")).sent_bytes_of_step;
  EXPECT_LT(less, plain / 10);
  EXPECT_THAT(file("less", "summary.json"), HasSubstr(text("\"sent_bytes_of_step\": ", less)));
  EXPECT_THAT(file("less", "metrics.jsonl"), HasSubstr("\"sent_bytes\":"));
}

TEST_F(CompressedTraining, ResidualsStayWithOtherRankCounts) {
  RunConfig run_of_three = compressed("ranks", "top-k");
  run_of_three.train.global_batch = 510;
  run_of_three.train.max_steps = 6;
  run(3, run_of_three);
  const auto before = sums_of_kept("ranks");
  ASSERT_FALSE(before.empty());
  for (const int ranks : {2, 3}) {
    // Another step would change the residuals, so they are checked directly after the resume.
    comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
      RunConfig next = run_of_three;
      next.train.max_steps = 7;
      RunCallbacks look;
      look.on_start = [&](Trainer& trainer) {
        const std::string own = "optimizer/compression/top-k/own/";
        for (const checkpoint::Shard& shard : test::state_under(trainer, own)) {
          const std::string& name = shard.name;
          at::Tensor sum = shard.tensor.clone();
          context.world().all_reduce(sum);
          const at::Tensor& expected = before.at(own + name);
          EXPECT_LE((sum.flatten() - expected).abs().max().item<double>(), 1e-6) << name << ", " << ranks;
          EXPECT_GT(expected.abs().max().item<double>(), 0);
        }
        throw InvalidArgument("seen");
      };
      EXPECT_THROW(run_training(next, context, {.start = RunStart::kResume, .callbacks = look}), Error);
    });
  }
}

/// Ranks store the residuals of encoded sums in pieces. Their whole is the same for any number of ranks.
TEST_F(CompressedTraining, SumResidualsStayWithOtherRankCounts) {
  RunConfig run_of_three = compressed("ranks", "one-bit");
  run_of_three.train.global_batch = 510;
  run_of_three.train.max_steps = 6;
  run(3, run_of_three);
  std::map<std::string, at::Tensor> before;
  checkpoint::ShardReader reader(newest("ranks"));
  for (const auto& [name, stored] : reader.tensors()) {
    if (name.find("/pieces/") == std::string::npos) continue;
    before[name] = at::empty(stored.sizes);
    reader.read(name, checkpoint::whole_box(stored.sizes), before[name]);
    EXPECT_GT(before[name].abs().max().item<double>(), 0) << name;
  }
  ASSERT_EQ(before.size(), 1U) << "of fc2.weight there are too few elements";
  for (const int ranks : {2, 3, 4}) {
    comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
      RunConfig next = run_of_three;
      next.train.max_steps = 7;
      RunCallbacks look;
      look.on_start = [&](Trainer& trainer) {
        const std::string pieces = "optimizer/compression/one-bit/pieces/";
        for (const checkpoint::Shard& shard : test::state_under(trainer, pieces)) {
          const at::Tensor& expected = before.at(pieces + shard.name);
          EXPECT_TRUE(at::equal(shard.tensor, expected.narrow(0, shard.offsets[0], shard.tensor.numel())))
              << shard.name << ", " << ranks;
        }
        throw InvalidArgument("seen");
      };
      EXPECT_THROW(run_training(next, context, {.start = RunStart::kResume, .callbacks = look}), Error);
    });
  }
}

/// With two ranks there are no residuals of sums, so rank 0 adds them to its own.
TEST_F(CompressedTraining, RanksWithoutPiecesTakeResidualsOver) {
  RunConfig changing = compressed("ranks", "sign");
  changing.train.max_steps = 6;
  run(4, changing);
  const at::Tensor rows = sums_of_kept("ranks").at("optimizer/compression/sign/own/residual/fc1.weight");
  at::Tensor pieces = at::empty_like(rows);
  checkpoint::ShardReader reader(newest("ranks"));
  reader.read("optimizer/compression/sign/pieces/sums_residual/fc1.weight",
              checkpoint::whole_box(pieces.sizes()), pieces);
  EXPECT_GT(pieces.abs().max().item<double>(), 0);
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    RunConfig next = changing;
    next.train.max_steps = 7;
    RunCallbacks look;
    look.on_start = [&](Trainer& trainer) {
      EXPECT_TRUE(test::state_under(trainer, "optimizer/compression/sign/pieces/").empty());
      at::Tensor sum = test::state_under(trainer, "optimizer/compression/sign/own/").front().tensor.clone();
      context.world().all_reduce(sum);
      EXPECT_LE((sum.flatten() - rows - pieces).abs().max().item<double>(), 1e-6);
      throw InvalidArgument("seen");
    };
    EXPECT_THROW(run_training(next, context, {.start = RunStart::kResume, .callbacks = look}), Error);
  });
  changing.train.max_steps = 8;
  EXPECT_EQ(run(2, changing, RunStart::kResume).steps, 8);
  changing.train.max_steps = 10;
  EXPECT_EQ(run(4, changing, RunStart::kResume).steps, 10) << "with pieces that nobody has written";
}

TEST_F(CompressedTraining, OneRankReportsDroppedResiduals) {
  RunConfig changing = compressed("fewer", "top-k");
  changing.train.max_steps = 6;
  run(2, changing);
  changing.train.max_steps = 8;
  testing::internal::CaptureStderr();
  EXPECT_EQ(run(1, changing, RunStart::kResume).steps, 8);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("what 2 ranks have left out of gradients so far is dropped"));
}

TEST_F(CompressedTraining, AnotherCompressionBeginsWithNothingKept) {
  RunConfig changing = compressed("changing", "top-k");
  changing.train.max_steps = 6;
  run(2, changing);
  changing.train.max_steps = 8;
  changing.parallel.compression = "power-sgd";
  EXPECT_EQ(run(2, changing, RunStart::kResume).steps, 8);
  changing.train.max_steps = 10;
  changing.parallel.compression = "none";
  EXPECT_EQ(run(2, changing, RunStart::kResume).steps, 10);
}

TEST_F(CompressedTraining, RankThatMismatchesCheckpointIsNamed) {
  RunConfig changing = compressed("changing", "power-sgd");
  changing.train.max_steps = 6;
  run(2, changing);
  changing.train.max_steps = 8;
  changing.parallel.compression_rank = 3;
  EXPECT_THAT([&] { run(2, changing, RunStart::kResume); },
              ThrowsMessage<DataError>(HasSubstr("compression/power-sgd/q/fc1.weight")));
}

TEST_F(CompressedTraining, RejectsIncompatibleOptionsWithReason) {
  const auto refusal = [&](const std::string& compression, const auto& change) {
    RunConfig changed = compressed("no", compression);
    change(changed);
    try {
      resolve_plan(changed, 2);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_THAT(refusal("top-k", [](RunConfig& c) { c.parallel.tensor = 2; }),
              HasSubstr("codecs need unsharded gradients"));
  EXPECT_EQ(refusal("dgc", [](RunConfig& c) { c.optimizer.name = "adamw"; }), "none");
  EXPECT_THAT(refusal("dgc", [](RunConfig& c) { c.optimizer.nesterov = true; }),
              AllOf(HasSubstr("momentum as it is"), HasSubstr("optimizer.nesterov = false")));
  EXPECT_EQ(refusal("one-bit", [](RunConfig&) {}), "none");
  EXPECT_THAT(refusal("one-bit", [](RunConfig& c) { c.optimizer.name = "sgd"; }),
              AllOf(HasSubstr("momentum of adam, adamw or lamb"), HasSubstr("optimizer.name = \"adamw\"")));
  EXPECT_THAT(refusal("one-bit", [](RunConfig& c) { c.parallel.compression_warmup_steps = 0; }),
              HasSubstr("15 to 25 % of all steps; found 0"));
  EXPECT_THAT(refusal("one-bit", [](RunConfig& c) { c.train.clip_norm = 1; }),
              AllOf(HasSubstr("its norm is not the gradients'"), HasSubstr("train.clip_norm = 0")));
  EXPECT_THAT(refusal("one-bit", [](RunConfig& c) { c.offload.optimizer = "files"; }),
              HasSubstr("has the momentum elsewhere"));
  EXPECT_EQ(refusal("sign", [](RunConfig& c) { c.parallel.zero = 1; }), "none");
  EXPECT_THAT(refusal("power-sgd",
                      [](RunConfig& c) {
                        c.parallel.pipeline = 2;
                        c.parallel.schedule = "pipedream";
                      }),
              HasSubstr("updates stages asynchronously"));
}

TEST_F(CompressedTraining, LocalClippingContinuesFromCheckpoint) {
  RunConfig whole = compressed("whole", "dgc"), part = compressed("part", "dgc");
  for (RunConfig* each : {&whole, &part}) {
    each->parallel.compression_clip_norm = 0.1;
    each->train.clip_norm = 0;
  }
  const std::string expected = run(2, whole).weights_xxh3;
  part.train.max_steps = 6;
  run(2, part);
  part.train.max_steps = 12;
  EXPECT_EQ(run(2, part, RunStart::kResume).weights_xxh3, expected);
  part.run.name = "unclipped";
  part.parallel.compression_clip_norm = 0;
  EXPECT_NE(run(2, part).weights_xxh3, expected);
}

TEST_F(CompressedTraining, LocalClippingRequiresTotalNorm) {
  const auto refusal = [&](const auto& change) {
    RunConfig changed = compressed("no", "dgc");
    changed.parallel.compression_clip_norm = 1;
    change(changed);
    try {
      resolve_plan(changed, 4);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_EQ(refusal([](RunConfig&) {}), "none");
  EXPECT_THAT(refusal([](RunConfig& c) { c.parallel.compression = "top-k"; }),
              AllOf(HasSubstr("it is \"dgc\" that clips"), HasSubstr("parallel.compression = \"dgc\"")));
  EXPECT_THAT(refusal([](RunConfig& c) { c.parallel.pipeline = 2; }),
              HasSubstr("gradients of its own stages"));
  EXPECT_THAT(refusal([](RunConfig& c) { c.parallel.chunks = 2; }), HasSubstr("reduced one by one"));
}

TEST_F(CompressedTraining, IsNotVerifiedStepByStep) {
  EXPECT_THAT([&] { check_verifiable(resolve_plan(compressed("verified", "top-k"), 2)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("no serial run has the same steps")));
}

}  // namespace
}  // namespace trireme::train
