// Training in pipelines with compressed activations. It converges as without compression, and resumes from a
// checkpoint with the same bits.

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/unit/train/small_runs.h"
#include "trireme/schedule/schedule_table.h"
#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {
namespace {

using testing::HasSubstr;

class CompressedActivationsTraining : public SmallRuns {
 protected:
  /// 8 layers: two stages on each of four ranks. Micro-batches of 64 rows give tensors of 2048 elements.
  RunConfig piped(const std::string& name, const std::string& compression,
                  const std::string& schedule = "1f1b") const {
    RunConfig result = config(name);
    result.model.hidden = {32, 32, 32, 32, 32, 32, 32};
    result.parallel.schedule = schedule;
    result.parallel.microbatches = 8;
    result.parallel.partition = "parameters";
    result.parallel.activation_compression = compression;
    result.optimizer.lr = 0.003;
    result.train.epochs = 20;
    result.train.max_steps = 60;
    result.checkpoint.every_steps = 30;
    if (!schedule::find_schedule(schedule).asynchronous) return result;
    result.train.clip_norm = 0;
    result.parallel.microbatches = 0;
    result.train.global_batch = 256;
    result.train.max_steps = 160;  // because gradients are of earlier weights
    result.checkpoint.every_steps = 80;
    return result;
  }
  static double accuracy(const RunResult& result) { return result.evaluation->metric("accuracy").value; }
  RunResult run_over(int ranks, RunConfig config, RunStart start = RunStart::kFresh) const {
    config.parallel.pipeline = ranks;
    return run(ranks, config, start);
  }
};

class SomeSchedules : public CompressedActivationsTraining,
                      public testing::WithParamInterface<std::string> {};
/// unit_parallel compares the messages of every schedule with a serial program.
INSTANTIATE_TEST_SUITE_P(Of, SomeSchedules,
                         testing::Values("1f1b", "interleaved-zb", "dualpipe-v", "pipedream"),
                         [](const auto& row) {
                           std::string name = row.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

/// The noise of 8 bits is at most a hundredth of a block's largest value, without bias. It may change the
/// step at which the loss falls, but not the final result.
TEST_P(SomeSchedules, LearnWithEightBitsAndResumeBitwise) {
  for (const int ranks : {2, 4}) {
    SCOPED_TRACE(ranks);
    const RunResult plain = run_over(ranks, piped(text("plain", ranks), "none", GetParam()));
    const RunConfig whole = piped(text("whole", ranks), "int8", GetParam());
    const RunResult rounded = run_over(ranks, whole);
    EXPECT_NE(rounded.weights_xxh3, plain.weights_xxh3);
    EXPECT_GT(accuracy(plain), 0.9);
    EXPECT_GT(accuracy(rounded), accuracy(plain) - 0.02);
    EXPECT_LT(3 * rounded.sent_to_stages_bytes_of_step, plain.sent_to_stages_bytes_of_step);
    RunConfig part = whole;
    part.run.name = text("part", ranks);
    part.train.max_steps = whole.checkpoint.every_steps;
    run_over(ranks, part);
    part.train.max_steps = whole.train.max_steps;
    EXPECT_EQ(run_over(ranks, part, RunStart::kResume).weights_xxh3, rounded.weights_xxh3);
  }
}

TEST_F(CompressedActivationsTraining, TellsTheBytesThatItSends) {
  RunConfig each = piped("plain", "none");
  each.train.max_steps = 4;
  const std::int64_t values = 512 * 32, plain = run_over(2, each).sent_to_stages_bytes_of_step;
  EXPECT_EQ(plain, 4 * values) << "rank 0 sends activations";
  each = piped("less", "int8");
  each.train.max_steps = 4;
  const std::int64_t less = run_over(2, each).sent_to_stages_bytes_of_step;
  EXPECT_EQ(less, values + values / 512 * 4);
  EXPECT_THAT(file("less", "summary.json"), HasSubstr(text("\"sent_to_stages_bytes_of_step\": ", less)));
  EXPECT_THAT(file("less", "metrics.jsonl"), HasSubstr(text("\"sent_to_stages_bytes\":", less)));
}

/// Two replicas of a pipeline draw different random numbers. Compressed gradients, sharded weights, low
/// precision and one-rank runs also work.
TEST_F(CompressedActivationsTraining, WorksWithReplicasShardsAndShortFloats) {
  const auto learns_with = [&](const char* name, const auto& change) {
    RunConfig with = piped(name, "int8"), without = piped(text(name, "-plain"), "none");
    for (RunConfig* each : {&with, &without}) {
      each->parallel.pipeline = 2;
      change(*each);
    }
    const double reached = accuracy(run(4, without));
    EXPECT_GT(reached, 0.9) << name;
    EXPECT_GT(accuracy(run(4, with)), reached - 0.02) << name;
  };
  learns_with("replicas", [](RunConfig&) {});
  learns_with("shards", [](RunConfig& c) { c.parallel.zero = 3; });
  learns_with("bf16", [](RunConfig& c) { c.train.precision = "bf16"; });
  learns_with("fp16", [](RunConfig& c) { c.train.precision = "fp16"; });
  learns_with("gradients", [](RunConfig& c) { c.parallel.compression = "int8"; });
  learns_with("tensor", [](RunConfig& c) { c.parallel.tensor = 2; });
  RunConfig alone = piped("alone", "int8"), plain = piped("alone-plain", "none");
  EXPECT_EQ(run(1, alone).weights_xxh3, run(1, plain).weights_xxh3) << "nothing travels";
}

}  // namespace
}  // namespace trireme::train
