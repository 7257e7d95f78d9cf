#include "trireme/train/run/run.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <csignal>
#include <limits>
#include <mutex>

#include "tests/support/temporary_folder.h"
#include "tests/unit/data/idx_samples.h"
#include "tests/unit/train/small_runs.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

class RunTraining : public SmallRuns {};

TEST_F(RunTraining, MetricsLinesCountTheirStepTimes) {
  run(1, config("a"));
  for (const std::string& line : split(file("a", "metrics.jsonl"), '\n')) {
    if (line.find("\"event\":\"step\"") == std::string::npos) continue;
    const std::string key = "\"step_s\":";
    // A step of this network takes tens of microseconds. A line without a time would say 1e-9 s.
    EXPECT_GT(std::stod(line.substr(line.find(key) + key.size())), 1e-6) << line;
  }
}

TEST_F(RunTraining, OversizedGlobalBatchTrainsWithWarning) {
  RunConfig large = config("large");
  large.train.max_steps = 0;
  large.train.global_batch = std::numeric_limits<std::int64_t>::max();
  testing::internal::CaptureStderr();
  const RunResult result = run(2, large);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(result.steps, large.train.epochs) << "all samples in each";
  EXPECT_THAT(said,
              HasSubstr("train.global_batch = 9223372036854775807 is more than the 4096 training samples"));
}

TEST_F(RunTraining, LastBatchIsDroppedAsConfigured) {
  RunConfig dropped = config("dropped");
  dropped.train.global_batch = 1000;  // 4 full batches of 4096 samples, and 96 samples
  dropped.train.max_steps = 0;
  EXPECT_EQ(run(2, dropped).steps, 5 * dropped.train.epochs);
  dropped.run.name = "whole";
  dropped.data.drop_last = true;
  const RunResult whole = run(2, dropped);
  EXPECT_EQ(whole.steps, 4 * dropped.train.epochs);
  dropped.run.name = "part";
  dropped.train.max_steps = 3;
  run(2, dropped);
  dropped.train.max_steps = 0;
  EXPECT_EQ(run(2, dropped, RunStart::kResume).weights_xxh3, whole.weights_xxh3);
  dropped.run.name = "none";
  dropped.train.global_batch = 5000;
  EXPECT_THAT([&] { run(1, dropped); }, ThrowsMessage<InvalidArgument>(HasSubstr("data.drop_last")));
}

TEST_F(RunTraining, DataNotesAppearOncePerRun) {
  data_ = data::open_data({.name = "synthetic"});
  data_->notes = {"left out 3 files"};
  testing::internal::CaptureStderr();
  run(2, config("noted"));
  EXPECT_EQ(num_lines(testing::internal::GetCapturedStderr(), "warning: left out 3 files"), 1u);
}

TEST_F(RunTraining, LeavesSummaryMetricsConfigurationAndModel) {
  const RunResult result = run(2, config("a"));
  EXPECT_EQ(result.status, "completed");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.steps, 12);
  const std::string summary = file("a", "summary.json");
  for (const char* field :
       {"test_accuracy", "train_loss", "samples_per_s", "\"world_size\": 2", "\"steps\": 12", "wall_s",
        "peak_rss_bytes", "weights_xxh3", "\"status\": \"completed\""}) {
    EXPECT_THAT(summary, HasSubstr(field));
  }
  EXPECT_EQ(num_lines(file("a", "metrics.jsonl"), "\"event\":\"step\""), 12u);
  EXPECT_EQ(num_lines(file("a", "metrics.jsonl"), "\"event\":\"eval\""), 2u)
      << "one per epoch, one at the end";
  EXPECT_EQ(describe(load_run_config(folder_ / "a/config.toml")), describe(config("a")));
  const auto model = checkpoint::load_safetensors(folder_ / "a/model.safetensors");
  EXPECT_EQ(checkpoint::xxh3_of(model.tensors), result.weights_xxh3);
}

TEST_F(RunTraining, ItsPageSaysHowItEnded) {
  run(2, config("whole"));
  EXPECT_THAT(file("whole", "report.html"), HasSubstr("<span class=\"status completed\">completed</span>"));
  callbacks_.on_evaluation = [](std::int64_t, const Evaluation&) { return RunControl::kStop; };
  run(1, config("part"));
  callbacks_ = {};
  EXPECT_THAT(file("part", "report.html"), HasSubstr("<span class=\"status stopped\">stopped</span>"));
}

TEST_F(RunTraining, TensorboardFilesHaveEachStepOnce) {
  const auto events_of = [&](const std::string& run) {
    const std::filesystem::path folder = folder_.path() / run / "tensorboard";
    std::size_t files = 0, losses = 0;
    if (!std::filesystem::exists(folder)) return std::pair(files, losses);
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::string content = read_file(entry.path());
      ++files;
      for (auto at = content.find("step/loss"); at != std::string::npos;
           at = content.find("step/loss", at + 1))
        ++losses;
    }
    return std::pair(files, losses);
  };
  RunConfig plain = config("plain");
  run(1, plain);
  EXPECT_EQ(events_of("plain"), std::pair(std::size_t{0}, std::size_t{0}));
  RunConfig asked = config("asked");
  asked.run.tensorboard = true;
  asked.checkpoint.every_steps = 5;
  asked.train.max_steps = 7;
  run(1, asked);
  EXPECT_EQ(events_of("asked"), std::pair(std::size_t{1}, std::size_t{7}));
  asked.train.max_steps = 12;
  run(1, asked, RunStart::kResume);  // from step 5; steps 6 and 7 run again
  EXPECT_EQ(events_of("asked"), std::pair(std::size_t{2}, std::size_t{12}));
}

TEST_F(RunTraining, ResumedRunHasSameBits) {
  const RunResult whole = run(2, config("whole"));
  RunConfig part = config("part");
  part.train.max_steps = 6;
  EXPECT_EQ(run(2, part).steps, 6);
  part.train.max_steps = 12;
  const RunResult resumed = run(2, part, RunStart::kResume);
  EXPECT_EQ(resumed.steps, 12);
  EXPECT_EQ(resumed.weights_xxh3, whole.weights_xxh3);
  EXPECT_EQ(resumed.train_loss, whole.train_loss);
  EXPECT_EQ(resumed.evaluation, whole.evaluation);
  EXPECT_EQ(num_lines(file("part", "metrics.jsonl"), "\"event\":\"step\""), 12u);
}

TEST_F(RunTraining, ResumeListsChangedKeysAndLearningRates) {
  RunConfig part = config("changed");
  part.learning_rate.schedule = "cosine";
  part.train.max_steps = 6;
  run(1, part);
  part.train.max_steps = 12;
  part.optimizer.weight_decay = 0.5;
  testing::internal::CaptureStderr();
  run(1, part, RunStart::kResume);
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_EQ(num_lines(told, "resume: "), 3u) << told;
  EXPECT_THAT(told, HasSubstr("resume: train.max_steps was 6 and is now 12\n"));
  EXPECT_THAT(told, HasSubstr("resume: optimizer.weight_decay was 0.0 and is now 0.5\n"));
  // 0.01 along half a cosine, after 6 of 12 steps. Step 6 of 6 is its end.
  EXPECT_THAT(told,
              HasSubstr("resume: the learning rate of step 7 is 0.005; as the checkpoint was configured, "
                        "it would be 0\n"));
}

TEST_F(RunTraining, ResumeReportsNoUnchangedRate) {
  RunConfig part = config("unchanged");
  part.train.max_steps = 6;
  run(1, part);
  part.train.max_steps = 12;
  testing::internal::CaptureStderr();
  run(1, part, RunStart::kResume);
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_EQ(num_lines(told, "resume: "), 1U) << told;
}

TEST_F(RunTraining, ResumeReportsRateReducedByEvaluations) {
  RunConfig part = config("plateau");
  part.learning_rate = {.schedule = "reduce_on_plateau", .factor = 0.5, .patience = 0, .threshold = 0.9};
  part.eval.every_steps = 2;
  part.train.max_steps = 6;
  run(1, part);  // the last two of three evaluations do not improve
  part.train.max_steps = 12;
  part.optimizer.lr = 0.02;
  testing::internal::CaptureStderr();
  run(1, part, RunStart::kResume);
  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      HasSubstr(
          "the learning rate of step 7 is 0.005; as the checkpoint was configured, it would be 0.0025\n"));
}

TEST_F(RunTraining, SingleSplitTrainsWithoutEvaluation) {
  data_ = data::open_data({.name = "synthetic"});
  const std::string evaluated = run(2, config("evaluated")).weights_xxh3;
  data_->test = nullptr;
  const RunResult result = run(2, config("alone"));
  EXPECT_EQ(result.status, "completed");
  EXPECT_FALSE(result.evaluation.has_value());
  EXPECT_EQ(result.weights_xxh3, evaluated);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "alone" / "model.safetensors"));
  EXPECT_EQ(num_lines(file("alone", "metrics.jsonl"), "\"event\":\"eval\""), 0u);
  RunConfig in_stages = config("stages");
  in_stages.parallel.pipeline = 2;
  EXPECT_EQ(run(2, in_stages).status, "completed");
}

TEST_F(RunTraining, EvaluationKeysRequireSecondSplit) {
  data_ = data::open_data({.name = "synthetic"});
  data_->test = nullptr;
  const auto rejects = [&](const std::string& key, const auto& set) {
    RunConfig asked = config("asked");
    set(asked);
    EXPECT_THAT([&] { run(1, asked); },
                ThrowsMessage<InvalidArgument>(AllOf(
                    HasSubstr(key), HasSubstr("data set synthetic has no second split to evaluate on"))));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "asked"));
  };
  rejects("checkpoint.best = \"loss\"", [](RunConfig& c) { c.checkpoint.best = "loss"; });
  rejects("eval.patience = 2", [](RunConfig& c) { c.eval.patience = 2; });
  rejects("eval.every_steps = 3", [](RunConfig& c) { c.eval.every_steps = 3; });
  rejects("lr.schedule", [](RunConfig& c) { c.learning_rate.schedule = "reduce_on_plateau"; });
}

TEST_F(RunTraining, BestEvaluationIsKeptAcrossResume) {
  RunConfig part = config("best");
  part.eval.every_steps = 1;
  part.checkpoint.best = "loss";
  part.train.max_steps = 6;
  run(2, part);
  // So high a rate that the evaluations after the resume are not the best ones.
  part.optimizer.lr = 2;
  part.train.max_steps = 12;
  run(2, part, RunStart::kResume);
  std::pair<double, std::int64_t> best{1e9, 0};
  for (const std::string& line : split(file("best", "metrics.jsonl"), '\n')) {
    const auto at = line.find("\"test_loss\":");
    if (at == std::string::npos) continue;
    const auto step = line.find("\"step\":");
    best = std::min(best, {std::stod(line.substr(at + 12)), std::stoll(line.substr(step + 7))});
  }
  const auto kept = checkpoint::list_checkpoints(folder_ / "best/best");
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(checkpoint::load_checkpoint(kept[0]).step, best.second);
  EXPECT_LT(best.second, 12) << "the last evaluation was the best: the test shows nothing";
}

TEST_F(RunTraining, CallbacksRunEverywhereAndMayStop) {
  std::mutex mutex;
  std::vector<std::int64_t> starts, steps, evaluations;
  const auto note = [&](std::vector<std::int64_t>& list, std::int64_t step) {
    const std::lock_guard lock(mutex);
    list.push_back(step);
  };
  callbacks_.on_start = [&](Trainer& trainer) { note(starts, trainer.steps_done()); };
  callbacks_.on_step = [&](const StepReport& report) { note(steps, report.step); };
  callbacks_.on_evaluation = [&](std::int64_t step, const Evaluation& evaluation) {
    note(evaluations, step);
    EXPECT_GT(evaluation.loss, 0);
    return step == 4 ? RunControl::kStop : RunControl::kContinue;
  };
  RunConfig early = config("early");
  early.eval.every_steps = 2;
  const RunResult result = run(2, early);
  std::sort(steps.begin(), steps.end());
  EXPECT_THAT(starts, ElementsAre(0, 0));
  EXPECT_THAT(steps, ElementsAre(1, 1, 2, 2, 3, 3, 4, 4));
  EXPECT_THAT(evaluations, testing::UnorderedElementsAre(2, 2, 4, 4));
  EXPECT_EQ(result.status, "stopped");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.steps, 4);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "early/model.safetensors"));
}

TEST_F(RunTraining, BackgroundSavesLeaveFilesOfForeground) {
  RunConfig foreground = config("same");
  foreground.checkpoint = {.every_steps = 1, .keep = 4, .best = "loss", .asynchronous = false};
  foreground.optimizer.name = "adamw";
  foreground.train.ema_decay = 0.9;
  foreground.eval.every_steps = 1;
  foreground.model.hidden = {1024};
  foreground.train.global_batch = 4;
  foreground.train.max_steps = 4;
  run(2, foreground);
  std::filesystem::rename(folder_ / "same", folder_ / "foreground");
  RunConfig background = foreground;
  background.checkpoint.asynchronous = true;
  run(2, background);
  const auto ours = checkpoint::list_checkpoints(folder_ / "same/checkpoints");
  ASSERT_EQ(ours.size(), 4u);
  for (const auto& path : ours) {
    const auto name = path.filename();
    for (const char* kind : {"model", "optimizer"}) {
      for (const int number : {1, 2}) {
        const std::string file = text(kind, "-0000", number, "-of-00002.safetensors");
        EXPECT_EQ(read_file(path / file), read_file(folder_ / "foreground/checkpoints" / name / file))
            << name;
      }
    }
  }
  EXPECT_EQ(checkpoint::list_checkpoints(folder_ / "same/best").size(), 1u);
}

TEST_F(RunTraining, BeginsWithWeightsOfNamedFile) {
  const RunResult first = run(1, config("first"));
  RunConfig second = config("second");
  second.model.weights = (folder_ / "first/model.safetensors").string();
  second.optimizer.lr = 1e-30;  // no step changes a weight
  second.optimizer.momentum = 0;
  EXPECT_EQ(run(2, second).weights_xxh3, first.weights_xxh3) << "on both ranks, although one reads the file";
  second.run.name = "third";
  second.model.hidden = {9};
  EXPECT_THAT([&] { run(1, second); }, ThrowsMessage<DataError>(HasSubstr("fc1.weight")));
}

TEST_F(RunTraining, SignalStopsAllRanksResumably) {
  RunConfig stopped = config("stopped");
  stopped.checkpoint.every_steps = 0;
  {
    const StopRequest stop;
    std::raise(SIGTERM);
    std::raise(SIGTERM);  // the launcher's copy of the same signal
    const RunResult result = run(2, stopped, RunStart::kFresh, &stop);
    EXPECT_EQ(result.status, "interrupted");
    EXPECT_EQ(result.exit_code, 128 + SIGTERM);
    EXPECT_EQ(result.steps, 2) << "asked before step 1, agreed when step 2 ends";
  }
  EXPECT_THAT(file("stopped", "summary.json"), HasSubstr("\"status\": \"interrupted\""));
  const RunResult resumed = run(2, stopped, RunStart::kResume);
  EXPECT_EQ(resumed.weights_xxh3, run(2, config("whole")).weights_xxh3);
}

TEST_F(RunTraining, ResumeRejectsChangedConfigurationAndEmptyFolder) {
  EXPECT_THAT([&] { run(1, config("none"), RunStart::kResume); },
              ThrowsMessage<DataError>(HasSubstr("no valid checkpoint in")));
  run(1, config("a"));
  RunConfig other = config("a");
  other.train.global_batch = 256;
  EXPECT_THAT([&] { run(1, other, RunStart::kResume); },
              ThrowsMessage<InvalidArgument>(HasSubstr("train.global_batch was 512 and is now 256")));
}

TEST_F(RunTraining, EarlierRunOfSameNameIsKept) {
  const RunResult first = run(1, config("a"));
  RunConfig again = config("a");
  again.run.seed = 6;
  run(1, again);
  EXPECT_THAT(file("a.1", "summary.json"), HasSubstr(first.weights_xxh3));
  EXPECT_THAT(file("a", "summary.json"), testing::Not(HasSubstr(first.weights_xxh3)));
}

TEST_F(RunTraining, RanksWithDifferentConfigurationsAreTold) {
  const auto body = [&](comm::Context& context) {
    RunConfig mine = config("a");
    mine.optimizer.lr = *mine.optimizer.lr + context.rank();
    run_training(mine, context);
  };
  EXPECT_THAT([&] { comm::run_ranks_as_threads(2, body); },
              ThrowsMessage<InvalidArgument>(HasSubstr("rank 0 'lr = 0.01', rank 1 'lr = 1.01'")));
}

TEST_F(RunTraining, TooHighLearningRateIsDivergence) {
  RunConfig wild = config("wild");
  wild.optimizer = {.name = "sgd", .lr = 1e30, .momentum = 0.9};
  wild.train.clip_norm = 0;
  EXPECT_THAT([&] { run(2, wild); },
              ThrowsMessage<DivergedError>(testing::AllOf(HasSubstr("step "), HasSubstr("on rank 0, 1"))));
}

struct Conflict {
  const char* assignment;
  int world_size;
  const char* reason;
};

TEST(CheckRunConfig, RejectsConflictingSettings) {
  const test::TemporaryFolder folder;
  write_file_atomic(folder / "run.toml", "[data]\nname = \"synthetic\"\n");
  const Conflict conflicts[] = {
      {"parallel.data=2", 4, "parallel.data = 2 needs as many ranks, found 4"},
      {"train.global_batch=3", 4,
       "train.global_batch = 3 cannot be split over 4 ranks x train.accumulation = 1"},
      {"train.accumulation=33", 2, "it needs at least 66 samples"},
      {"lr.warmup_steps=65", 1, "lr.warmup_steps = 65 is longer than the run of 64 steps"},
  };
  for (const Conflict& conflict : conflicts) {
    const RunConfig config = load_run_config(folder / "run.toml", {conflict.assignment});
    EXPECT_THAT([&] { check_run_config(config, conflict.world_size); },
                ThrowsMessage<InvalidArgument>(HasSubstr(conflict.reason)));
  }
  EXPECT_NO_THROW(check_run_config(load_run_config(folder / "run.toml"), 4));
}

/// Configurations over files of the test: 12 images of `pixels` by `pixels`, and a text.
class ModelAndData : public testing::Test {
 protected:
  ModelAndData() { write_file_atomic(folder_ / "run.toml", "[train]\nglobal_batch = 4\n"); }

  void write_images(std::uint32_t pixels, char label) const {
    for (const std::string split : {"train", "t10k"}) {
      test::write_bytes(folder_ / (split + "-images-idx3-ubyte"),
                        test::idx_bytes({12, pixels, pixels}, std::string(12 * pixels * pixels, 'x')));
      test::write_bytes(folder_ / (split + "-labels-idx1-ubyte"),
                        test::idx_bytes({12}, std::string(12, label)));
    }
  }
  RunConfig images(const std::string& model) const {
    return load_run_config(folder_ / "run.toml", {"data.name=mnist", "data.path=" + folder_.path().string(),
                                                  "model.name=" + model, "model.hidden=[4]"});
  }
  RunConfig words(const std::string& model) const {
    write_file_atomic(folder_ / "text", std::string(100, 'a') + std::string(100, 'b'));
    return load_run_config(folder_ / "run.toml",
                           {"data.name=text", "data.block=8", "data.path=" + (folder_ / "text").string(),
                            "model.name=" + model, "model.hidden=[4]", "model.width=8", "model.heads=2"});
  }
  test::TemporaryFolder folder_;
};

TEST_F(ModelAndData, ThatFitArePassed) {
  write_images(4, 9);
  EXPECT_NO_THROW(check_run_config(images("mlp"), 2));
  EXPECT_NO_THROW(check_run_config(images("cnn"), 2));
  EXPECT_NO_THROW(check_run_config(words("gpt"), 2));
}

TEST_F(ModelAndData, RejectsMisfitByBothNames) {
  write_images(3, 9);
  const auto expect_rejected = [](const RunConfig& config, const std::string& reason) {
    EXPECT_THAT([&] { check_run_config(config, 2); },
                ThrowsMessage<InvalidArgument>(
                    AllOf(HasSubstr(text("model.name = \"", config.model.name, "\"")),
                          HasSubstr(text("data.name = \"", config.data.name, "\"")), HasSubstr(reason))));
  };
  expect_rejected(images("cnn"), "of at least 4 by 4 pixels, not samples of shape (1, 3, 3)");
  expect_rejected(images("gpt"), "sequences of tokens");
  expect_rejected(words("cnn"), "not samples of shape (8)");
  expect_rejected(words("mlp"), "Long and Float");  // torch's reason why it cannot multiply tokens
}

TEST_F(ModelAndData, RejectsLabelBeyondClassesBySample) {
  write_images(4, 10);
  EXPECT_THAT([&] { check_run_config(images("cnn"), 2); },
              ThrowsMessage<DataError>(
                  AllOf(HasSubstr("train-labels"), HasSubstr("sample 0 is 10"), HasSubstr("0 to 9"))));
}

TEST_F(RunTraining, UnfitModelIsRejectedBeforeAnyWrite) {
  RunConfig wrong = config("wrong");
  wrong.model.name = "gpt";
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    EXPECT_THAT([&] { run_training(wrong, context); },
                ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("\"gpt\""), HasSubstr("\"synthetic\""))));
  });
  EXPECT_FALSE(std::filesystem::exists(folder_ / "wrong"));
}

}  // namespace
}  // namespace trireme::train
