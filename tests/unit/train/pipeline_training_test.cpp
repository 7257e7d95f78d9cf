// The trainer with a model that is split over ranks. The numbers are those of one rank for any schedule,
// replicas and precision. A checkpoint does not depend on the cuts.
#include <ATen/ops/sqrt.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <csignal>
#include <mutex>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/data/synthetic_dataset.h"
#include "trireme/model/deferred.h"
#include "trireme/schedule/schedule_table.h"
#include "trireme/train/run/run.h"
#include "trireme/train/run/verify.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// 70 small images: with a global batch of 32 an epoch is 32, 32 and 6 samples.
data::DataSource small_data() {
  const auto split = [&](std::uint64_t number) {
    return std::make_shared<data::SyntheticDataset>(data::SyntheticOptions{
        .num_samples = 70, .num_classes = 4, .height = 6, .width = 6, .seed = 3, .split = number});
  };
  return {.name = "small", .train = split(0), .test = split(1), .input_shape = {1, 6, 6}, .num_classes = 4};
}

/// 9 layers, so that two ranks can have four stages each.
RunConfig cut_config(int stages, const std::string& schedule = "1f1b") {
  RunConfig config;
  config.run.log_every_steps = 1;
  config.model.hidden = {12, 12, 12, 12, 12, 12, 12, 12};
  config.train.epochs = 2;
  config.train.global_batch = 32;
  config.train.clip_norm = 0.1;
  config.optimizer.lr = 0.05;
  config.optimizer.momentum = 0.9;
  config.parallel.pipeline = stages;
  config.parallel.schedule = schedule;
  config.parallel.microbatches = 4;
  config.parallel.partition = "parameters";
  return config;
}

Comparison verdict_on(int ranks, const RunConfig& config) {
  std::optional<Comparison> verdict;
  std::mutex mutex;
  comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
    const Comparison mine = verify(config, context, small_data(), 2);
    const std::lock_guard lock(mutex);
    if (context.is_main()) verdict = mine;
  });
  return *verdict;
}

std::vector<std::string> synchronous_schedules() {
  std::vector<std::string> names;
  for (const schedule::ScheduleRow& row : schedule::schedules()) {
    if (!row.asynchronous) names.emplace_back(row.name);
  }
  return names;
}

std::string test_name(std::string schedule) {
  for (char& letter : schedule) letter = letter == '-' ? '_' : letter;
  return "S_" + schedule;
}

class PipelineSchedule : public testing::TestWithParam<std::string> {};

TEST_P(PipelineSchedule, TrainsLikeOneRankWithAnyOptions) {
  for (const int replicas : {1, 2}) {
    for (const char* precision : {"fp32", "bf16", "fp16"}) {
      for (const bool recompute : {false, true}) {
        SCOPED_TRACE(text(replicas, " replicas, ", precision, recompute ? ", recompute" : ""));
        RunConfig config = cut_config(2, GetParam());
        config.train.precision = precision;
        config.scaler.initial = 1024;
        config.parallel.recompute = recompute;
        const Comparison verdict = verdict_on(2 * replicas, config);
        EXPECT_TRUE(verdict.equal()) << verdict.first()->describe();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Table, PipelineSchedule, testing::ValuesIn(synchronous_schedules()),
                         [](const auto& param) { return test_name(param.param); });

TEST(PipelineTraining, IsBitwiseOneRankWithOrderedMicrobatches) {
  for (const char* schedule : {"naive", "gpipe", "1f1b", "interleaved-1f1b"}) {
    SCOPED_TRACE(schedule);
    EXPECT_TRUE(verdict_on(4, cut_config(4, schedule)).bitwise());
  }
}

TEST(PipelineTraining, RoundsOfAScheduleAreAccumulated) {
  RunConfig config = cut_config(2, "gpipe");
  config.parallel.microbatches = 2;
  config.train.accumulation = 3;
  EXPECT_TRUE(verdict_on(2, config).bitwise());
}

struct Outcome {
  std::vector<double> losses, norms;
  Evaluation evaluation;
};

/// Trains to the end. Returns the results of rank 0.
Outcome train_on(int ranks, const RunConfig& config) {
  Outcome outcome;
  const data::DataSource data = small_data();
  comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
    Trainer trainer(config, context, data);
    Outcome mine;
    const auto take = [&](const std::optional<StepReport>& report) {
      if (!report) return;
      mine.losses.push_back(report->loss);
      mine.norms.push_back(report->grad_norm.value_or(-1));
    };
    while (!trainer.finished()) take(trainer.step());
    take(trainer.last_report());
    mine.evaluation = trainer.evaluate();
    if (context.is_main()) outcome = mine;
  });
  return outcome;
}

TEST(PipelineTraining, ReportsLossAndNormOfWholeModel) {
  RunConfig serial = cut_config(1);
  serial.train.accumulation = 4;
  serial.train.ema_decay = 0.5;
  const Outcome expected = train_on(1, serial);
  for (const int stages : {2, 3, 4}) {
    SCOPED_TRACE(stages);
    RunConfig config = cut_config(stages);
    config.train.ema_decay = 0.5;
    const Outcome found = train_on(stages, config);
    EXPECT_EQ(found.losses, expected.losses);
    EXPECT_EQ(found.norms, expected.norms);
    EXPECT_EQ(found.evaluation, expected.evaluation);
  }
}

// The last batch of an epoch has 6 samples, so that some of the 16 micro-batches have none.
TEST(PipelineTraining, EmptyMicrobatchesAreSkippedOnEveryStage) {
  RunConfig serial = cut_config(1);
  serial.train.accumulation = 16;
  const Outcome expected = train_on(1, serial);
  RunConfig config = cut_config(2);
  config.parallel.microbatches = 8;
  const Outcome found = train_on(4, config);
  ASSERT_EQ(found.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < expected.losses.size(); ++i)
    EXPECT_NEAR(found.losses[i], expected.losses[i], 1e-5) << "step " << i + 1;
}

/// Two layers. The forward and the gradient of the second are finite. The gradient of the first is NaN,
/// because of the slope of a root at 0.
class FirstGradientIsNoNumber : public model::Model {
 public:
  FirstGradientIsNoNumber() {
    first_ = register_module("first", torch::nn::Linear(36, 4));
    second_ = register_module("second", torch::nn::Linear(4, 4));
  }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor values = input;
    for (const model::Layer& layer : layers()) values = layer.forward(values);
    return values;
  }
  std::vector<model::Layer> layers() override {
    return {model::make_layer(*this, "first", {first_.ptr()},
                              [this](const at::Tensor& input) {
                                return first_->forward(input.flatten(1)) + at::sqrt(first_->bias * 0);
                              }),
            model::make_layer(*this, "second", {second_.ptr()},
                              [this](const at::Tensor& input) { return second_->forward(input); })};
  }

 private:
  torch::nn::Linear first_ = nullptr, second_ = nullptr;
};

TEST(PipelineTraining, NonFiniteGradientSkipsStepOnAll) {
  for (const char* precision : {"fp16", "fp32"}) {
    SCOPED_TRACE(precision);
    RunConfig config = cut_config(2);
    config.train.precision = precision;
    config.train.non_finite = "skip";
    const data::DataSource data = small_data();
    comm::run_ranks_as_threads(2, [&](comm::Context& context) {
      Trainer trainer(config, context, data, std::make_shared<FirstGradientIsNoNumber>());
      std::vector<at::Tensor> before;
      for (const auto& [name, parameter] : trainer.parameters()) before.push_back(parameter.detach().clone());
      trainer.step();
      const StepReport report = *trainer.last_report();
      EXPECT_TRUE(report.skipped);
      EXPECT_TRUE(std::isfinite(report.loss)) << "only a gradient is no number";
      for (std::size_t i = 0; i < before.size(); ++i)
        EXPECT_TRUE(before[i].equal(trainer.parameters()[i].second)) << trainer.parameters()[i].first;
    });
  }
}

TEST(PipelineTraining, RankHoldsOnlyItsStages) {
  const data::DataSource data = small_data();
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    Trainer trainer(cut_config(2), context, data);
    std::int64_t held = 0, own = 0;
    for (const at::Tensor& parameter : trainer.model().parameters())
      if (!parameter.is_meta()) held += parameter.numel();
    for (const auto& [name, parameter] : trainer.parameters()) own += parameter.numel();
    EXPECT_EQ(held, own);
  });
}

TEST(PipelineTraining, StepPastDivergedStageNamesRank) {
  RunConfig config = cut_config(2);
  config.optimizer.lr = 1e30;
  config.train.clip_norm = 0;
  EXPECT_THAT([&] { train_on(2, config); },
              ThrowsMessage<DivergedError>(HasSubstr("not a finite number on rank")));
}

/// Runs in a private folder.
class PipelineRuns : public testing::Test {
 protected:
  RunConfig config(const std::string& name, int stages) const {
    RunConfig config = cut_config(stages);
    config.run = {.name = name, .folder = folder_.path().string(), .seed = 5, .log_every_steps = 1};
    config.data.name = "synthetic";
    config.train.max_steps = 8;
    config.train.global_batch = 64;
    if (stages == 1) config.train.accumulation = 4;
    config.optimizer.name = "adamw";
    config.optimizer.lr = 0.01;
    config.checkpoint.every_steps = 4;
    return config;
  }
  RunResult run(int ranks, const RunConfig& config, RunStart start = RunStart::kFresh) const {
    RunResult result;
    comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
      const RunResult mine = run_training(config, context, {.start = start});
      if (context.is_main()) result = mine;
    });
    return result;
  }
  test::TemporaryFolder folder_;
};

TEST_F(PipelineRuns, CheckpointOfTwoStagesChangesStageCount) {
  const std::string expected = run(1, config("serial", 1)).weights_xxh3;
  EXPECT_EQ(run(2, config("two", 2)).weights_xxh3, expected);
  for (const int stages : {1, 3, 4}) {
    SCOPED_TRACE(stages);
    const std::string name = text("from", stages);
    RunConfig half = config(name, 2);
    half.train.max_steps = 4;
    run(2, half);
    const RunResult rest = run(stages, config(name, stages), RunStart::kResume);
    EXPECT_EQ(rest.steps, 8);
    EXPECT_EQ(rest.weights_xxh3, expected);
  }
}

TEST_F(PipelineRuns, FilesHaveWholeModelForAnyCut) {
  for (const int stages : {1, 2}) run(stages, config(text("cut", stages), stages));
  const char* weights = "model.safetensors";
  EXPECT_EQ(read_file(folder_.path() / "cut2" / weights), read_file(folder_.path() / "cut1" / weights));
  const auto saved = [&](const char* run) {
    return checkpoint::load_checkpoint(folder_.path() / run / "checkpoints/step-00000008");
  };
  EXPECT_EQ(checkpoint::xxh3_of(saved("cut2").model), checkpoint::xxh3_of(saved("cut1").model));
  EXPECT_EQ(checkpoint::xxh3_of(saved("cut2").optimizer), checkpoint::xxh3_of(saved("cut1").optimizer));
}

TEST_F(PipelineRuns, ManyStagesPerRankKeepBits) {
  for (const int ranks : {1, 2}) {
    RunConfig whole = config(text("whole", ranks), 1), cut = config(text("cut", ranks), 1);
    whole.train.accumulation = cut.train.accumulation = 2;
    cut.parallel.chunks = 3;
    const schedule::Program program = resolve_plan(cut, ranks).program();
    EXPECT_EQ(program.num_stages, 3);
    EXPECT_EQ(run(ranks, cut).weights_xxh3, run(ranks, whole).weights_xxh3) << ranks << " ranks";
  }
}

TEST_F(PipelineRuns, CustomDeferredModelFollowsRunSeed) {
  const RunConfig own = config("own", 2);
  const data::DataSource data = data::open_data(own.data, static_cast<std::uint64_t>(own.run.seed));
  std::string found;
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const auto model = deferred(
        [&] { return model::make_model(own.model, data.input_shape, data.num_classes, /*seed=*/99); });
    const RunResult mine = run_training(own, context, {.model = model});
    if (context.is_main()) found = mine.weights_xxh3;
  });
  EXPECT_EQ(found, run(2, config("shipped", 2)).weights_xxh3);
}

/// 24 steps. The pipeline is drained every 6 steps: at the end of an epoch and at checkpoints.
class AsynchronousRuns : public PipelineRuns, public testing::WithParamInterface<const char*> {
 protected:
  RunConfig asynchronous(const std::string& name, int stages = 3) const {
    RunConfig config = PipelineRuns::config(name, stages);
    config.parallel.schedule = GetParam();
    config.parallel.microbatches = 0;
    config.parallel.vertical_sync = false;
    config.train.clip_norm = 0;
    config.train.max_steps = 24;
    config.train.global_batch = 60;
    config.eval.every_steps = 12;
    config.checkpoint.every_steps = 6;
    return config;
  }
};

TEST_P(AsynchronousRuns, ContinueFromCheckpointWithSameBits) {
  const RunResult whole = run(3, asynchronous("whole"));
  EXPECT_EQ(whole.status, "completed");
  EXPECT_EQ(whole.steps, 24);
  EXPECT_LT(whole.train_loss, 2.2) << "it learns: ten classes by chance have a loss of 2.3";
  RunConfig half = asynchronous("half");
  half.train.max_steps = 12;
  run(3, half);
  EXPECT_EQ(run(3, asynchronous("half"), RunStart::kResume).weights_xxh3, whole.weights_xxh3);
  const std::string metrics = read_file(folder_.path() / "whole" / "metrics.jsonl");
  EXPECT_THAT(metrics, HasSubstr(R"("staleness":)"));
  EXPECT_THAT(metrics, HasSubstr(R"("weight_versions":)"));
}

TEST_P(AsynchronousRuns, AreDrainedAndSavedAfterStop) {
  RunConfig config = asynchronous("asked");
  config.train.max_steps = 400;
  config.eval.every_steps = 400;
  config.checkpoint.every_steps = 400;
  RunResult result;
  const StopRequest stop;
  comm::run_ranks_as_threads(3, [&](comm::Context& context) {
    RunCallbacks callbacks;
    callbacks.on_step = [&](const StepReport& report) {
      if (report.step == 5 && context.rank() == 1) ::raise(SIGTERM);
    };
    const RunResult mine = run_training(config, context, {.stop = &stop, .callbacks = callbacks});
    if (context.is_main()) result = mine;
  });
  EXPECT_EQ(result.status, "interrupted");
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
  EXPECT_GT(result.steps, 5);
  EXPECT_LT(result.steps, 40);
  config.train.max_steps = result.steps + 6;
  const RunResult rest = run(3, config, RunStart::kResume);
  EXPECT_EQ(rest.status, "completed");
}

TEST_F(PipelineRuns, ReplicatedStagesContinueWithOtherReplicas) {
  const auto of = [&](std::vector<std::int64_t> replicas, int steps) {
    RunConfig changed = config("moved", 3);
    changed.parallel.schedule = "1f1b-rr";
    changed.parallel.microbatches = 0, changed.train.clip_norm = 0;
    changed.parallel.stage_replicas = std::move(replicas);
    changed.train.max_steps = steps;
    return changed;
  };
  run(3, of({2, 1}, 4));
  EXPECT_EQ(run(3, of({1, 2}, 8), RunStart::kResume).steps, 8);
  EXPECT_EQ(run(3, of({1, 1, 1}, 12), RunStart::kResume).steps, 12) << "another number of stages";
}

INSTANTIATE_TEST_SUITE_P(Table, AsynchronousRuns, testing::Values("pipedream", "pipedream-2bw", "1f1b-rr"),
                         [](const auto& param) { return test_name(param.param); });

TEST(PipelineConfig, RejectsInvalidConfigurationBeforeStart) {
  const auto error_of = [](int ranks, const std::function<void(RunConfig&)>& change) -> std::string {
    RunConfig config = cut_config(2);
    config.data.name = "synthetic";
    change(config);
    try {
      check_run_config(config, ranks);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "nothing";
  };
  EXPECT_EQ(error_of(2, [](RunConfig&) {}), "nothing");
  EXPECT_EQ(error_of(4, [](RunConfig&) {}), "nothing");
  EXPECT_THAT(error_of(3, [](RunConfig&) {}), HasSubstr("parallel.pipeline = 2 does not fit 3 ranks"));
  EXPECT_THAT(
      error_of(4, [](RunConfig& c) { c.parallel.data = 3; }),
      HasSubstr("parallel.pipeline = 2 x parallel.data = 3 does not fit 4 ranks; start it with -n 6"));
  EXPECT_THAT(error_of(2, [](RunConfig& c) { c.parallel.microbatches = 33; }),
              HasSubstr("it needs at least 33 samples"));
  EXPECT_THAT(error_of(2, [](RunConfig& c) { c.parallel.schedule = "1f2b"; }),
              HasSubstr("did you mean '1f1b'?"));
  const auto of_pipedream = [&](int ranks, const std::function<void(RunConfig&)>& change) {
    return error_of(ranks, [&](RunConfig& c) {
      c.parallel.schedule = "pipedream";
      c.parallel.microbatches = 0;
      c.train.clip_norm = 0;
      change(c);
    });
  };
  EXPECT_EQ(of_pipedream(2, [](RunConfig&) {}), "nothing");
  EXPECT_THAT(of_pipedream(2, [](RunConfig& c) { c.train.clip_norm = 0.5; }),
              AllOf(HasSubstr("train.clip_norm = 0.5"), HasSubstr("different times")));
  EXPECT_THAT(of_pipedream(2, [](RunConfig& c) { c.train.precision = "fp16"; }), HasSubstr("loss scale"));
  EXPECT_THAT(of_pipedream(2, [](RunConfig& c) { c.train.non_finite = "skip"; }),
              HasSubstr("skip a step together"));
  EXPECT_THAT(of_pipedream(2, [](RunConfig& c) { c.train.accumulation = 2; }), HasSubstr("flush"));
  EXPECT_THAT(of_pipedream(4, [](RunConfig&) {}), HasSubstr("cannot share gradients; start it with -n 2"));
  EXPECT_THAT(of_pipedream(2,
                           [](RunConfig& c) {
                             c.parallel.schedule = "1f1b-rr";
                             c.parallel.stage_replicas = {2, 1};
                           }),
              HasSubstr("as many in all as there are ranks (2), found 3"));
  EXPECT_THAT(error_of(16, [](RunConfig& c) { c.parallel.pipeline = 16; }),
              AllOf(HasSubstr("16 stages"), HasSubstr("only 9 layers")));
}

TEST_F(PipelineRuns, ProgramFromFileIsCheckedAndRun) {
  const auto with_program = [&](const std::string& csv) {
    write_file_atomic(folder_ / "own.csv", csv);
    RunConfig own = config("own", 2);
    own.parallel.schedule = (folder_ / "own.csv").string();
    own.parallel.microbatches = 0;
    own.train.accumulation = 2;
    check_run_config(own, 2);
    return own;
  };
  const RunConfig own = with_program("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(run(2, own).weights_xxh3, run(1, config("serial", 1)).weights_xxh3);
  EXPECT_THAT([&] { with_program("0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n"); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("own.csv"), HasSubstr("rank 0"))));
  EXPECT_THAT([&] { with_program("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("own.csv")));
}

TEST_F(PipelineRuns, RejectsUnsupportedActionsWithReason) {
  const auto refused = [&](const std::string& csv, const std::string& action, const std::string& reason) {
    write_file_atomic(folder_ / "own.csv", csv);
    RunConfig own = config("own", 2);
    own.parallel.schedule = (folder_ / "own.csv").string();
    own.parallel.microbatches = 0;
    for (const bool in_a_run : {false, true}) {
      EXPECT_THAT(
          [&] { in_a_run ? (void)run(2, own) : (void)check_run_config(own, 2); },
          ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("own.csv"), HasSubstr(action), HasSubstr(reason))));
    }
  };
  refused("0UNSHARD,0F0,0B0,0RESHARD\n1F0,1B0\n", "0UNSHARD", "gathers");
  refused("0F0,0RECOMPUTE0,0B0\n1F0,1B0\n", "0RECOMPUTE0", "parallel.recompute = true");
}

TEST_F(PipelineRuns, RecomputingProgramNeedsDroppedActivations) {
  write_file_atomic(folder_ / "own.csv", "0F0,0RECOMPUTE0,0B0\n1F0,1B0\n");
  RunConfig own = config("own", 2);
  own.parallel.schedule = (folder_ / "own.csv").string();
  own.parallel.microbatches = 0;
  own.parallel.recompute = true;
  own.train.accumulation = 4;
  EXPECT_EQ(run(2, own).weights_xxh3, run(1, config("serial", 1)).weights_xxh3);
}

TEST_F(PipelineRuns, ResumeRejectsAnotherKindOfSchedule) {
  const auto of = [&](const std::string& name, const std::string& schedule, int stages, std::int64_t steps) {
    RunConfig config = PipelineRuns::config(name, stages);
    config.parallel.schedule = schedule;
    config.parallel.microbatches = 0;
    config.train.clip_norm = 0;
    config.train.accumulation = 1;
    config.train.max_steps = steps;
    return config;
  };
  const auto refused = [&](const RunConfig& config, int ranks, const char* was, const char* is) {
    EXPECT_THAT(
        [&] { run(ranks, config, RunStart::kResume); },
        ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("cannot resume run"), HasSubstr(was), HasSubstr(is))));
  };
  run(2, of("middle", "pipedream", 2, 4));
  refused(of("middle", "1f1b", 2, 8), 2, "pipedream", "1f1b");
  refused(of("middle", "pipedream", 1, 8), 1, "pipedream", "one stage");
  EXPECT_EQ(run(2, of("middle", "pipedream-2bw", 2, 8), RunStart::kResume).steps, 8);
  run(2, of("end", "1f1b", 2, 4));
  refused(of("end", "pipedream", 2, 8), 2, "1f1b", "pipedream");
  EXPECT_EQ(run(2, of("end", "gpipe", 2, 8), RunStart::kResume).steps, 8);
}

}  // namespace
}  // namespace trireme::train
