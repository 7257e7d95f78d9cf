// Training with compressed gradients: it learns, goes on from a checkpoint with the same bits, and keeps what
// was left out when the number of ranks changes.

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>

#include <map>

#include "tests/unit/train/small_runs.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/shard_reader.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/comm/internal/group_state.h"
#include "trireme/train/parallel_plan.h"
#include "trireme/train/trainer.h"
#include "trireme/train/verify.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

class CompressedTraining : public SmallRuns {
 protected:
  RunConfig compressed(const std::string& name, const std::string& compression) const {
    RunConfig result = config(name);
    result.model.hidden = {32};
    result.optimizer = {.name = "sgd", .lr = 0.05, .momentum = 0.9};
    result.parallel.compression = compression;
    result.parallel.compression_fraction = 0.02;
    result.parallel.compression_threshold = 0.003;
    result.parallel.compression_rank = 2;
    if (compression != "one-bit") return result;
    result.optimizer = {.name = "adamw", .lr = 0.01};
    result.train.clip_norm = 0;
    result.parallel.compression_warmup_steps = 4;
    return result;
  }
  std::filesystem::path newest(const std::string& run) const {
    return checkpoint::list_checkpoints(folder_ / run / "checkpoints").back();
  }
  /// Over all replicas, by tensor.
  std::map<std::string, at::Tensor> sums_of_kept(const std::string& run) const {
    checkpoint::ShardReader reader(newest(run));
    std::map<std::string, at::Tensor> sums;
    for (const auto& [name, stored] : reader.tensors()) {
      if (name.find("/own/") == std::string::npos) continue;
      const at::Tensor rows = at::empty(stored.sizes);
      reader.read(name, checkpoint::whole_box(stored.sizes), rows);
      sums[name] = rows.sum(0);
    }
    return sums;
  }
};

class EachCompression : public CompressedTraining, public testing::WithParamInterface<std::string> {};
INSTANTIATE_TEST_SUITE_P(Table, EachCompression,
                         testing::Values("int8", "qsgd", "ternary", "sign", "top-k", "random-k", "threshold",
                                         "dgc", "power-sgd", "one-bit"),
                         [](const auto& row) {
                           std::string name = row.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST_P(EachCompression, GoesOnFromACheckpointWithTheSameBits) {
  RunConfig whole = compressed("whole", GetParam()), part = compressed("part", GetParam());
  const std::string expected = run(2, whole).weights_xxh3;
  part.train.max_steps = 6;
  run(2, part);
  part.train.max_steps = 12;
  EXPECT_EQ(run(2, part, RunStart::kResume).weights_xxh3, expected);
}

TEST_P(EachCompression, LearnsWhatItLearnsUncompressed) {
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

TEST_F(CompressedTraining, OneBitLambGoesOnFromACheckpointBeforeAndBehindItsWarmUp) {
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

TEST_F(CompressedTraining, OneRankHasTheMomentumOfItsOptimizerWhateverTheCompression) {
  EXPECT_EQ(run(1, compressed("dgc", "dgc")).weights_xxh3, run(1, compressed("none", "none")).weights_xxh3);
  RunConfig uncompressed = compressed("adamw", "one-bit");
  uncompressed.parallel.compression = "none";
  EXPECT_EQ(run(1, compressed("one-bit", "one-bit")).weights_xxh3, run(1, uncompressed).weights_xxh3);
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

TEST_F(CompressedTraining, WhatWasLeftOutStaysWithFewerAndWithMoreRanks) {
  RunConfig run_of_three = compressed("ranks", "top-k");
  run_of_three.train.global_batch = 510;
  run_of_three.train.max_steps = 6;
  run(3, run_of_three);
  const auto before = sums_of_kept("ranks");
  ASSERT_FALSE(before.empty());
  for (const int ranks : {2, 3}) {
    // Another step would add to what is kept: it is looked at where it has been taken up.
    comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
      RunConfig next = run_of_three;
      next.train.max_steps = 7;
      RunCallbacks look;
      look.on_start = [&](Trainer& trainer) {
        for (const auto& [name, tensor] : trainer.compression_state().own) {
          at::Tensor sum = tensor.clone();
          context.world().all_reduce(sum);
          const at::Tensor& expected = before.at("optimizer/compression/top-k/own/" + name);
          EXPECT_LE((sum.flatten() - expected).abs().max().item<double>(), 1e-6) << name << ", " << ranks;
          EXPECT_GT(expected.abs().max().item<double>(), 0);
        }
        throw InvalidArgument("seen");
      };
      EXPECT_THROW(run_training(next, context, {.start = RunStart::kResume, .callbacks = look}), Error);
    });
  }
}

/// Sums that ranks have encoded, and what of them was left out, in pieces: the whole is the same for any
/// number of ranks.
TEST_F(CompressedTraining, WhatWasLeftOutOfSumsStaysWithFewerAndWithMoreRanks) {
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
        for (const auto& [name, tensor, begin, numel] : trainer.compression_state().pieces) {
          const at::Tensor& expected = before.at("optimizer/compression/one-bit/pieces/" + name);
          EXPECT_TRUE(at::equal(tensor, expected.narrow(0, begin, tensor.numel()))) << name << ", " << ranks;
        }
        throw InvalidArgument("seen");
      };
      EXPECT_THROW(run_training(next, context, {.start = RunStart::kResume, .callbacks = look}), Error);
    });
  }
}

/// With two ranks nobody keeps anything of sums: it goes with what rank 0 keeps.
TEST_F(CompressedTraining, WhatWasLeftOutOfSumsIsTakenOverByRanksThatSendNoPieces) {
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
      EXPECT_TRUE(trainer.compression_state().pieces.empty());
      at::Tensor sum = trainer.compression_state().own.front().second.clone();
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

TEST_F(CompressedTraining, OneRankSaysThatItDropsWhatWasLeftOut) {
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

TEST_F(CompressedTraining, ARankThatDoesNotFitTheCheckpointIsNamed) {
  RunConfig changing = compressed("changing", "power-sgd");
  changing.train.max_steps = 6;
  run(2, changing);
  changing.train.max_steps = 8;
  changing.parallel.compression_rank = 3;
  EXPECT_THAT([&] { run(2, changing, RunStart::kResume); },
              ThrowsMessage<DataError>(HasSubstr("compression/power-sgd/q/fc1.weight")));
}

TEST_F(CompressedTraining, WhatCannotBeHadWithItIsRefusedWithTheReason) {
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
              HasSubstr("it is whole ones that"));
  EXPECT_THAT(refusal("top-k", [](RunConfig& c) { c.train.precision = "fp16"; }),
              AllOf(HasSubstr("by a factor that changes"), HasSubstr("train.precision = \"bf16\"")));
  EXPECT_EQ(refusal("int8", [](RunConfig& c) { c.train.precision = "fp16"; }), "none");
  EXPECT_THAT(refusal("dgc", [](RunConfig& c) { c.optimizer.name = "adamw"; }),
              AllOf(HasSubstr("SGD with momentum"), HasSubstr("optimizer.name = \"sgd\"")));
  EXPECT_THAT(refusal("threshold", [](RunConfig& c) { c.parallel.compression_threshold = 0; }),
              AllOf(HasSubstr("must be above 0"), HasSubstr("parallel.compression_threshold = ")));
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
              HasSubstr("updates each stage on its own time"));
}

TEST_F(CompressedTraining, LocalClippingGoesOnFromACheckpointWithTheSameBits) {
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

TEST_F(CompressedTraining, LocalClippingIsRefusedWhereThereIsNoNormOfAll) {
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

using HostOfRank = std::vector<std::string>;
const HostOfRank kTwoPairs = {"a", "a", "b", "b"}, kThreePairs = {"a", "a", "b", "b", "c", "c"};

/// Compressed between hosts, which threads take themselves for.
class TrainingBetweenHosts : public CompressedTraining {
 protected:
  /// As many samples as can be dealt out to two, three, four and six ranks alike.
  RunConfig dealt_out(const std::string& name, const std::string& compression) const {
    RunConfig result = compressed(name, compression);
    result.train.global_batch = 504;
    return result;
  }

  RunResult run_on(const HostOfRank& hosts, const RunConfig& config, RunStart start = RunStart::kFresh,
                   const RunCallbacks& callbacks = {}) const {
    RunResult result;
    comm::run_ranks_as_threads(static_cast<int>(hosts.size()), [&](comm::Context& context) {
      context.world().state().parts.host_ids = hosts;
      const RunResult mine = run_training(config, context, {.start = start, .callbacks = callbacks});
      if (context.is_main()) result = mine;
    });
    return result;
  }

  /// Of the run's newest checkpoint, what its compression keeps under `kind`/, by the rest of the name.
  std::map<std::string, at::Tensor> stored(const RunConfig& config, const std::string& kind) const {
    checkpoint::ShardReader reader(
        checkpoint::list_checkpoints(folder_ / config.run.name / "checkpoints").back());
    const std::string prefix = "optimizer/compression/" + config.parallel.compression + "/" + kind + "/";
    std::map<std::string, at::Tensor> found;
    for (const auto& [name, tensor] : reader.tensors()) {
      if (!name.starts_with(prefix)) continue;
      at::Tensor& values = found[name.substr(prefix.size())] = at::empty(tensor.sizes);
      reader.read(name, checkpoint::whole_box(tensor.sizes), values);
    }
    return found;
  }

  /// What all ranks keep as they go on from the run's newest checkpoint: the sums of their own, and pieces
  /// of vectors that are zero elsewhere.
  std::map<std::string, at::Tensor> taken_up_by(const HostOfRank& hosts, RunConfig config,
                                                const std::map<std::string, at::Tensor>& like) const {
    config.train.max_steps += 1;
    std::map<std::string, at::Tensor> taken;
    comm::run_ranks_as_threads(static_cast<int>(hosts.size()), [&](comm::Context& context) {
      context.world().state().parts.host_ids = hosts;
      RunCallbacks look;
      look.on_start = [&](Trainer& trainer) {
        const parallel::HookState state = trainer.compression_state();
        for (const auto& [name, values] : like) {
          at::Tensor sum = at::zeros_like(values);
          for (const auto& [own, tensor] : state.own) {
            if (own == name) sum.add_(tensor.flatten());
          }
          for (const auto& piece : state.pieces) {
            if (piece.name == name) sum.narrow(0, piece.begin, piece.tensor.numel()).add_(piece.tensor);
          }
          context.world().all_reduce(sum);
          if (context.is_main()) taken[name] = sum;
        }
        throw InvalidArgument("seen");
      };
      EXPECT_THROW(run_training(config, context, {.start = RunStart::kResume, .callbacks = look}), Error);
    });
    return taken;
  }
};

class EachBetweenHosts : public TrainingBetweenHosts, public testing::WithParamInterface<std::string> {};
INSTANTIATE_TEST_SUITE_P(Table, EachBetweenHosts,
                         testing::Values("int8", "qsgd", "ternary", "sign", "top-k", "random-k", "threshold",
                                         "dgc", "power-sgd", "one-bit"),
                         [](const auto& row) {
                           std::string name = row.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST_P(EachBetweenHosts, GoesOnFromACheckpointWithTheSameBits) {
  RunConfig whole = dealt_out("whole", GetParam()), part = dealt_out("part", GetParam());
  const std::string expected = run_on(kTwoPairs, whole).weights_xxh3;
  part.train.max_steps = 6;
  run_on(kTwoPairs, part);
  part.train.max_steps = 12;
  EXPECT_EQ(run_on(kTwoPairs, part, RunStart::kResume).weights_xxh3, expected);
  part.run.name = "all";
  part.parallel.compression_scope = "all";
  EXPECT_NE(run_on(kTwoPairs, part).weights_xxh3, expected) << "auto is hosts here";
}

TEST_P(EachBetweenHosts, LearnsAsOneRankDoes) {
  RunConfig plain = dealt_out("plain", "none"), less = dealt_out("less", GetParam());
  plain.optimizer = less.optimizer;
  if (GetParam() == "one-bit") less.parallel.compression_warmup_steps = 30;
  for (RunConfig* each : {&plain, &less}) {
    each->train.epochs = 20;
    each->train.max_steps = 120;
  }
  const double reached = run(1, plain).evaluation->metric("accuracy").value;
  EXPECT_GT(reached, 0.9);
  EXPECT_GT(run_on(kTwoPairs, less).evaluation->metric("accuracy").value, reached - 0.02);
}

/// Rank by rank, host by host, and back.
TEST_F(TrainingBetweenHosts, WhatWasLeftOutOfSharedOutGradientsStaysWhoeverEncodes) {
  for (const char* compression : {"sign", "top-k"}) {
    RunConfig changing = dealt_out(compression, compression);
    changing.parallel.zero = 2;
    changing.train.max_steps = 6;
    for (const char* scope : {"all", "auto", "all"}) {
      changing.parallel.compression_scope = scope;
      run_on(kTwoPairs, changing, changing.train.max_steps == 6 ? RunStart::kFresh : RunStart::kResume);
      std::map<std::string, at::Tensor> sums;
      for (const auto& [name, rows] : stored(changing, "own")) sums[name] = rows.sum(0);
      ASSERT_FALSE(sums.empty());
      changing.train.max_steps += 2;
      for (const char* next : {"all", "auto"}) {
        changing.parallel.compression_scope = next;
        for (const auto& [name, taken] : taken_up_by(kTwoPairs, changing, sums))
          EXPECT_LE((taken - sums.at(name)).abs().max().item<double>(), 1e-6) << name << scope << next;
      }
    }
  }
}

TEST_F(TrainingBetweenHosts, GoOnWithTheSameBitsWhereHostsEncodeWhatIsSharedOut) {
  for (const char* compression : {"sign", "qsgd"}) {
    RunConfig whole = dealt_out(text("whole", compression), compression), part = whole;
    part.run.name = text("part", compression);
    for (RunConfig* each : {&whole, &part}) each->parallel.zero = 3;
    const std::string expected = run_on(kTwoPairs, whole).weights_xxh3;
    part.train.max_steps = 6;
    run_on(kTwoPairs, part);
    part.train.max_steps = 12;
    EXPECT_EQ(run_on(kTwoPairs, part, RunStart::kResume).weights_xxh3, expected) << compression;
  }
}

TEST_F(TrainingBetweenHosts, WholeGradientsThatAreSharedOutHaveTheBitsOfReplicas) {
  for (const char* compression : {"threshold", "dgc", "power-sgd"}) {
    RunConfig config = dealt_out("replicas", compression);
    config.train.clip_norm = 0;
    const std::string expected = run_on(kTwoPairs, config).weights_xxh3;
    for (const std::int64_t zero : {1, 2, 3}) {
      config.run.name = text("zero", zero);
      config.parallel.zero = zero;
      EXPECT_EQ(run_on(kTwoPairs, config).weights_xxh3, expected) << compression << zero;
    }
  }
}

TEST_F(TrainingBetweenHosts, WhatWasLeftOutStaysWithOtherHostsAndRanks) {
  RunConfig changing = dealt_out("hosts", "top-k");
  changing.model.hidden = {128};
  changing.train.max_steps = 6;
  run_on(kTwoPairs, changing);
  std::map<std::string, at::Tensor> before;
  for (const auto& [name, rows] : stored(changing, "own")) {
    EXPECT_EQ(rows.size(0), 2) << "a row for each host";
    before[name] = rows.sum(0);
    EXPECT_GT(before[name].abs().max().item<double>(), 0) << name;
  }
  ASSERT_EQ(before.size(), 2u) << "one for each rank of a host";
  for (const HostOfRank& hosts :
       {kTwoPairs, HostOfRank{"a", "a", "b"}, kThreePairs, HostOfRank{"a", "b", "c"}, HostOfRank{"a", "a"}}) {
    for (const auto& [name, sum] : taken_up_by(hosts, changing, before))
      EXPECT_LE((sum - before[name]).abs().max().item<double>(), 1e-6)
          << name << ", " << testing::PrintToString(hosts);
  }
  changing.train.max_steps = 8;
  EXPECT_EQ(run_on({"a", "a", "a"}, changing, RunStart::kResume).steps, 8) << "no host has several any more";
  changing.train.max_steps = 10;
  EXPECT_EQ(run_on(kThreePairs, changing, RunStart::kResume).steps, 10) << "of rows that ranks have written";
}

TEST_F(TrainingBetweenHosts, WhatWasLeftOutOfSumsStaysWithOtherHosts) {
  RunConfig changing = dealt_out("hosts", "one-bit");
  changing.train.max_steps = 6;
  run_on(kThreePairs, changing);
  const auto before = stored(changing, "pieces");
  ASSERT_FALSE(before.empty());
  for (const HostOfRank& hosts : {kTwoPairs, kThreePairs, HostOfRank{"a", "a", "a", "a"}}) {
    for (const auto& [name, pieces] : taken_up_by(hosts, changing, before)) {
      EXPECT_GT(pieces.abs().max().item<double>(), 0) << name;
      EXPECT_TRUE(at::equal(pieces, before.at(name))) << name << ", " << testing::PrintToString(hosts);
    }
  }
}

/// Two hosts send no pieces of "sign", as two ranks do not.
TEST_F(TrainingBetweenHosts, WhatWasLeftOutOfSumsIsTakenOverByHostsThatSendNoPieces) {
  RunConfig changing = dealt_out("hosts", "sign");
  changing.train.max_steps = 6;
  run_on(kThreePairs, changing);
  const std::map<std::string, at::Tensor> own = stored(changing, "own");
  const std::map<std::string, at::Tensor> rows = {
      {"residual/fc1.weight", own.at("residual/fc1.weight").sum(0)}};
  const at::Tensor pieces = stored(changing, "pieces").at("sums_residual/fc1.weight");
  EXPECT_GT(pieces.abs().max().item<double>(), 0);
  const at::Tensor taken = taken_up_by(kTwoPairs, changing, rows).at("residual/fc1.weight");
  EXPECT_LE((taken - rows.at("residual/fc1.weight") - pieces).abs().max().item<double>(), 1e-6);
}

}  // namespace
}  // namespace trireme::train
