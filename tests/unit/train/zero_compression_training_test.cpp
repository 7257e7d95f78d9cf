// Training with compression of sharded gradients. It converges and resumes from a checkpoint with the same
// bits. Residuals are kept if the number of ranks or the sharding stage changes.

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>

#include <map>

#include "tests/support/compressions.h"
#include "tests/support/trainer_state.h"
#include "tests/unit/train/small_runs.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/shard_reader.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::HasSubstr;

class ZeroCompressedTraining : public SmallRuns {
 protected:
  RunConfig in_shards(const std::string& name, const std::string& compression, std::int64_t zero = 2) const {
    RunConfig result = config(name);
    result.model.hidden = {32};
    result.optimizer = {.name = "sgd", .lr = 0.05, .momentum = 0.9};
    result.parallel.zero = zero;
    result.parallel.compression = compression;
    result.parallel.compression_fraction = 0.02;
    result.parallel.keep_gradients = compression == "dgc" && zero > 1;
    return result;
  }
  /// The sum of the residuals of all ranks in the run's newest checkpoint.
  std::map<std::string, at::Tensor> sums_of_kept(const std::string& run) const {
    checkpoint::ShardReader reader(checkpoint::list_checkpoints(folder_ / run / "checkpoints").back());
    std::map<std::string, at::Tensor> sums;
    for (const auto& [name, stored] : reader.tensors()) {
      const auto own = name.find("/own/");
      if (own == std::string::npos) continue;
      const at::Tensor rows = at::empty(stored.sizes);
      reader.read(name, checkpoint::whole_box(stored.sizes), rows);
      sums[name.substr(own + 5)] = rows.sum(0);
    }
    return sums;
  }
  /// Checks that the residuals of ranks after a resume have these sums.
  void expect_taken_up(int ranks, RunConfig next, const std::map<std::string, at::Tensor>& before) const {
    next.train.max_steps += 1;
    comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
      RunCallbacks look;
      std::size_t num_seen = 0;
      look.on_start = [&](Trainer& trainer) {
        const std::string own = text("optimizer/compression/", next.parallel.compression, "/own/");
        for (const checkpoint::Shard& shard : test::state_under(trainer, own)) {
          const std::string& name = shard.name;
          at::Tensor sum = shard.tensor.clone();
          context.world().all_reduce(sum);
          EXPECT_LE((sum.flatten() - before.at(name)).abs().max().item<double>(), 1e-6) << name << ranks;
          ++num_seen;
        }
        throw InvalidArgument("seen");
      };
      EXPECT_THROW(run_training(next, context, {.start = RunStart::kResume, .callbacks = look}), Error);
      EXPECT_EQ(num_seen, before.size());
    });
  }
};

class EachZeroCompression : public ZeroCompressedTraining, public testing::WithParamInterface<std::string> {};
INSTANTIATE_TEST_SUITE_P(Table, EachZeroCompression,
                         testing::ValuesIn(test::compressions_where([](const std::string& name) {
                           return name != "none" && !parallel::compresses_momentum(name);
                         })),
                         test::name_of_codec);

TEST_P(EachZeroCompression, ContinuesFromCheckpointWithSameBits) {
  for (const std::int64_t zero : {1, 2, 3}) {
    RunConfig whole = in_shards(text("whole", zero), GetParam(), zero), part = whole;
    for (RunConfig* each : {&whole, &part}) each->train.accumulation = 2;
    part.run.name = text("part", zero);
    const std::string expected = run(3, whole).weights_xxh3;
    part.train.max_steps = 6;
    run(3, part);
    part.train.max_steps = 12;
    EXPECT_EQ(run(3, part, RunStart::kResume).weights_xxh3, expected) << zero;
  }
}

TEST_P(EachZeroCompression, ReachesTheAccuracyOfUncompressedTraining) {
  RunConfig plain = in_shards("plain", "none"), less = in_shards("less", GetParam());
  for (RunConfig* each : {&plain, &less}) {
    each->train.epochs = 20;
    each->train.max_steps = 120;
  }
  const double reached = run(2, plain).evaluation->metric("accuracy").value;
  EXPECT_GT(reached, 0.9);
  EXPECT_GT(run(2, less).evaluation->metric("accuracy").value, reached - 0.02);
}

TEST_F(ZeroCompressedTraining, TellsTheBytesThatItSends) {
  const std::int64_t plain = run(2, in_shards("plain", "none")).sent_bytes_of_step;
  EXPECT_NEAR(static_cast<double>(plain), 4 * (784 * 32 + 32 + 32 * 10 + 10) / 2.0, 512)
      << "of two ranks, each sends half of it";
  const std::int64_t less = run(2, in_shards("less", "int8")).sent_bytes_of_step;
  EXPECT_NEAR(static_cast<double>(less), (1.01 * 784 * 32 + 4 * (32 + 32 * 10 + 10)) / 2, 512);
  EXPECT_THAT(file("less", "summary.json"), HasSubstr(text("\"sent_bytes_of_step\": ", less)));
  EXPECT_THAT(file("less", "metrics.jsonl"), HasSubstr("\"sent_bytes\":"));
}

TEST_F(ZeroCompressedTraining, ResidualsStayWithOtherRanksAndSharding) {
  for (const std::string& compression : test::compressions_that_leave_out()) {
    RunConfig changing = in_shards(compression, compression);
    changing.train.global_batch = 504;
    changing.train.max_steps = 6;
    run(3, changing);
    const auto before = sums_of_kept(compression);
    ASSERT_EQ(before.size(), 1U) << "of fc2.weight there are too few elements";
    EXPECT_GT(before.begin()->second.abs().max().item<double>(), 0);
    for (const int ranks : {2, 3, 4}) {
      for (const std::int64_t zero : {0, 1, 3}) {
        changing.parallel.zero = zero;
        if (ranks == 2 || zero > 0) expect_taken_up(ranks, changing, before);
      }
    }
    changing.parallel.zero = 3;
    changing.train.max_steps = 8;
    EXPECT_EQ(run(4, changing, RunStart::kResume).steps, 8) << compression;
  }
}

TEST_F(ZeroCompressedTraining, OneRankCompressesNothing) {
  EXPECT_EQ(run(1, in_shards("int8", "int8")).weights_xxh3, run(1, in_shards("none", "none")).weights_xxh3);
}

}  // namespace
}  // namespace trireme::train
