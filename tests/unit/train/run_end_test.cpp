// The end of runs and their resume. The end is a checkpoint, a run with NaN values has diverged, and saved
// values are finite.

#include <ATen/ops/dropout.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>

#include "tests/unit/train/small_runs.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/consolidate.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/telemetry/run_data.h"
#include "trireme/train/run/recovery.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;
namespace fs = std::filesystem;

class RunEnd : public SmallRuns {
 protected:
  std::vector<std::int64_t> saved_steps(const std::string& run) const {
    std::vector<std::int64_t> steps;
    for (const fs::path& path : checkpoint::list_checkpoints(folder_ / run / "checkpoints"))
      steps.push_back(checkpoint::load_checkpoint(path).step);
    return steps;
  }
  checkpoint::TrainingCheckpoint newest(const std::string& run) const {
    return checkpoint::load_checkpoint(checkpoint::list_checkpoints(folder_ / run / "checkpoints").back());
  }
  /// Skips non-finite steps.
  RunConfig lenient(const std::string& name) const {
    RunConfig result = config(name);
    result.train.non_finite = "skip";
    result.train.clip_norm = 0;
    result.optimizer = {.name = "sgd", .lr = 0.01, .momentum = 0.9};
    return result;
  }
};

TEST_F(RunEnd, IsCheckpointWithSummaryWeights) {
  RunConfig uneven = config("uneven");
  uneven.checkpoint.every_steps = 5;
  const RunResult result = run(2, uneven);
  EXPECT_THAT(saved_steps("uneven"), ElementsAre(10, 12));
  EXPECT_EQ(checkpoint::xxh3_of(newest("uneven").model), result.weights_xxh3);
  RunConfig none = config("none");
  none.checkpoint.every_steps = 0;
  run(1, none);
  EXPECT_THAT(saved_steps("none"), ElementsAre(12));
}

TEST_F(RunEnd, ExportsEvaluatedAverages) {
  RunConfig averaged = config("averaged");
  averaged.train.ema_decay = 0.9;
  const RunResult result = run(2, averaged);
  EXPECT_NE(checkpoint::xxh3_of(newest("averaged").model), result.weights_xxh3)
      << "training goes on with these";
  const fs::path exported = folder_ / "exported.safetensors";
  checkpoint::export_weights(checkpoint::list_checkpoints(folder_ / "averaged/checkpoints").back(), exported);
  EXPECT_EQ(checkpoint::xxh3_of(checkpoint::load_safetensors(exported).tensors), result.weights_xxh3);
}

TEST_F(RunEnd, StopByCallbackSavesCheckpoint) {
  callbacks_.on_evaluation = [](std::int64_t, const Evaluation&) { return RunControl::kStop; };
  RunConfig early = config("early");
  early.eval.every_steps = 4;
  run(2, early);
  EXPECT_THAT(saved_steps("early"), ElementsAre(4));
}

TEST_F(RunEnd, ResumingAfterItDoesNothing) {
  RunConfig whole = config("whole");
  whole.checkpoint.every_steps = 5;
  const RunResult first = run(2, whole);
  const std::string summary = file("whole", "summary.json"), metrics = file("whole", "metrics.jsonl");
  for (int times = 0; times < 2; ++times) {
    testing::internal::CaptureStderr();
    const RunResult again = run(2, whole, RunStart::kResume);
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("nothing to do"));
    EXPECT_EQ(again.status, "completed");
    EXPECT_EQ(again.steps, 12);
    EXPECT_EQ(again.weights_xxh3, first.weights_xxh3);
    EXPECT_TRUE(file("whole", "summary.json") == summary);
    EXPECT_TRUE(file("whole", "metrics.jsonl") == metrics);
  }
  whole.train.max_steps = 14;
  EXPECT_EQ(run(2, whole, RunStart::kResume).steps, 14) << "a longer run goes on from there";
}

using SecurityRunEnd = RunEnd;

TEST_F(SecurityRunEnd, IgnoresEarlierEndlessSummary) {
  RunConfig whole = config("whole");
  whole.checkpoint.every_steps = 5;
  run(1, whole);
  fs::resize_file(folder_ / "whole/summary.json", 8 << 20);
  EXPECT_THAT([&] { run(1, whole, RunStart::kResume); },
              ThrowsMessage<DataError>(HasSubstr("is not a summary of a run")));
}

TEST_F(RunEnd, EndlessSkippingIsDivergence) {
  RunConfig dead = lenient("dead");
  dead.checkpoint = {.every_steps = 2, .keep = 2};
  run(1, dead);
  dead.optimizer.lr = 1e38;
  dead.train.epochs = 8;
  dead.train.max_steps = 60;
  EXPECT_THAT([&] { run(2, dead, RunStart::kResume); },
              ThrowsMessage<DivergedError>(HasSubstr("steps in a row were skipped")));
  EXPECT_THAT(saved_steps("dead"), ElementsAre(10, 12)) << "the good ones";
}

TEST_F(RunEnd, NonFiniteLossAlwaysIsDivergence) {
  RunConfig dead = lenient("short");
  dead.optimizer.lr = 1e38;
  dead.train.max_steps = 6;
  EXPECT_THAT([&] { run(1, dead); }, ThrowsMessage<DivergedError>(HasSubstr("the evaluation")));
  EXPECT_FALSE(fs::exists(folder_ / "short/summary.json"));
}

TEST_F(RunEnd, ErrorStaysInFolderUntilResume) {
  RunConfig dead = lenient("dead");
  dead.train.max_steps = 6;
  dead.optimizer.lr = 1e38;
  EXPECT_THROW(run(2, dead), DivergedError);
  telemetry::RunData found = telemetry::read_run(folder_ / "dead");
  EXPECT_EQ(found.status, "diverged");
  EXPECT_EQ(found.exit_code, kExitDiverged);
  EXPECT_THAT(found.message, HasSubstr("lower optimizer.lr"));
  EXPECT_EQ(found.steps, 6);

  RunConfig stubborn = config("stubborn");
  run(2, stubborn);
  EXPECT_EQ(telemetry::read_run(folder_ / "stubborn").status, "completed");
  EXPECT_EQ(telemetry::read_run(folder_ / "stubborn").exit_code, 0);
  callbacks_.on_start = [](Trainer&) { throw InvalidArgument("not with me"); };
  stubborn.train.max_steps = 16;
  stubborn.train.epochs = 3;
  EXPECT_THROW(run(2, stubborn, RunStart::kResume), InvalidArgument);
  found = telemetry::read_run(folder_ / "stubborn");
  EXPECT_EQ(found.status, "refused");
  EXPECT_EQ(found.message, "not with me");
  EXPECT_EQ(found.steps, 12);
  callbacks_.on_start = [&](Trainer&) { EXPECT_FALSE(fs::exists(folder_ / "stubborn/end.json")); };
  run(2, stubborn, RunStart::kResume);
  EXPECT_EQ(telemetry::read_run(folder_ / "stubborn").status, "completed");
}

/// The second of two ranks fails, and the first one detects the lost peer.
TEST_F(RunEnd, IsReasonOfFailedRankNotPeers) {
  const RunConfig missed = config("missed");
  EXPECT_THROW(comm::run_ranks_as_threads(2,
                                          [&](comm::Context& context) {
                                            RunCallbacks own;
                                            if (context.rank() == 1)
                                              own.on_start = [](Trainer&) { throw DataError("not with me"); };
                                            run_training(missed, context, {.callbacks = own});
                                          }),
               Error);
  const telemetry::RunData found = telemetry::read_run(folder_ / "missed");
  EXPECT_EQ(found.message, "not with me");
  EXPECT_EQ(found.exit_code, kExitData);
}

TEST_F(RunEnd, NonFiniteWeightsAreNotSaved) {
  RunConfig bad = config("bad");
  bad.checkpoint = {.every_steps = 3, .keep = 1};
  std::vector<Trainer*> trainers;
  callbacks_.on_start = [&](Trainer& trainer) { trainers.push_back(&trainer); };
  callbacks_.on_step = [&](const StepReport& report) {
    if (report.step != 6) return;  // the failure is known when step 6 has ended and is about to be saved
    const at::NoGradGuard no_grad;
    at::Tensor(trainers.back()->parameters()[0].second)[0][0].fill_(std::numeric_limits<float>::infinity());
  };
  EXPECT_THAT([&] { run(1, bad); },
              ThrowsMessage<DivergedError>(AllOf(HasSubstr("step 6"), HasSubstr("'fc1.weight'"),
                                                 HasSubstr("on rank 0"), HasSubstr("not saved"))));
  EXPECT_THAT(saved_steps("bad"), ElementsAre(3));
}

/// A user's model with dropout from torch's generator.
struct WithDropout : model::Model {
  WithDropout() {
    torch::manual_seed(1);
    linear = register_module("linear", torch::nn::Linear(784, 10));
  }
  at::Tensor forward(const at::Tensor& images) override {
    return linear->forward(at::dropout(images.flatten(1), 0.5, is_training()));
  }
  torch::nn::Linear linear = nullptr;
};

TEST_F(RunEnd, ResumeDrawsNumbersOfUninterruptedRun) {
  const auto train = [&](const std::string& name, std::int64_t to, RunStart start) {
    RunConfig part = config(name);
    part.train.max_steps = to;
    part.checkpoint.every_steps = 4;
    model_ = std::make_shared<WithDropout>();
    // The earlier random numbers of the process do not matter.
    torch::manual_seed(static_cast<std::uint64_t>(to));
    return run(1, part, start).weights_xxh3;
  };
  const std::string whole = train("whole", 12, RunStart::kFresh);
  train("part", 4, RunStart::kFresh);
  train("part", 8, RunStart::kResume);
  EXPECT_EQ(train("part", 12, RunStart::kResume), whole);
  RunConfig other = config("other");
  other.run.seed = 6;
  model_ = std::make_shared<WithDropout>();
  EXPECT_NE(run(1, other).weights_xxh3, whole);
}

}  // namespace
}  // namespace trireme::train
