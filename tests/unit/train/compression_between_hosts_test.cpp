// Training with gradients that are compressed between hosts. It converges and resumes from a checkpoint with
// the same bits. Residuals are kept if the number of hosts or ranks changes, or if other ranks encode.

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>

#include <map>

#include "tests/support/trainer_state.h"
#include "tests/unit/train/compressed_runs.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/shard_reader.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/comm/internal/group_state.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using HostOfRank = std::vector<std::string>;
const HostOfRank kTwoPairs = {"a", "a", "b", "b"}, kThreePairs = {"a", "a", "b", "b", "c", "c"};

/// Compression between hosts. Threads have host ids as if on several hosts.
class TrainingBetweenHosts : public CompressedTraining {
 protected:
  /// Batches that two, three, four and six ranks can share evenly.
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

  /// The compression state under `kind`/ in the run's newest checkpoint, by the rest of the name.
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

  /// The compression state of all ranks after they resume from the run's newest checkpoint: the sums of their
  /// own tensors. Pieces count as vectors that are zero elsewhere.
  std::map<std::string, at::Tensor> taken_up_by(const HostOfRank& hosts, RunConfig config,
                                                const std::map<std::string, at::Tensor>& like) const {
    config.train.max_steps += 1;
    std::map<std::string, at::Tensor> taken;
    comm::run_ranks_as_threads(static_cast<int>(hosts.size()), [&](comm::Context& context) {
      context.world().state().parts.host_ids = hosts;
      RunCallbacks look;
      look.on_start = [&](Trainer& trainer) {
        const std::string prefix = text("optimizer/compression/", config.parallel.compression, "/");
        const checkpoint::Shards of_hosts = test::state_under(trainer, prefix + "own/");
        const checkpoint::Shards pieces = test::state_under(trainer, prefix + "pieces/");
        for (const auto& [name, values] : like) {
          at::Tensor sum = at::zeros_like(values);
          for (const checkpoint::Shard& own : of_hosts) {
            if (own.name == name) sum.add_(own.tensor.flatten());
          }
          for (const checkpoint::Shard& piece : pieces) {
            if (piece.name == name) sum.narrow(0, piece.offsets[0], piece.tensor.numel()).add_(piece.tensor);
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
INSTANTIATE_TEST_SUITE_P(Table, EachBetweenHosts, testing::ValuesIn(test::lossy_compressions()),
                         test::name_of_codec);

TEST_P(EachBetweenHosts, ContinuesFromCheckpointWithSameBits) {
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

/// Encoded by ranks, by hosts, and by ranks again.
TEST_F(TrainingBetweenHosts, ShardedResidualsStayWithAnyEncoder) {
  for (const std::string& compression : test::codecs_that_leave_out()) {
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

TEST_F(TrainingBetweenHosts, ShardedHostsContinueWithSameBits) {
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

TEST_F(TrainingBetweenHosts, UncompressedShardsHaveBitsOfReplicas) {
  for (const char* compression : {"dgc", "power-sgd"}) {
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

TEST_F(TrainingBetweenHosts, ResidualsStayWithOtherHostsAndRanks) {
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

TEST_F(TrainingBetweenHosts, SumResidualsStayWithOtherHosts) {
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

/// Two hosts send no pieces of "sign", and neither do two ranks.
TEST_F(TrainingBetweenHosts, HostsWithoutPiecesTakeResidualsOver) {
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
