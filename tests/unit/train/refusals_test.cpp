// A Trainer and run_training() in a user-defined program reject all that the command line rejects before it
// starts a rank. The checks belong to the plan and not to its caller.
#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"
#include "trireme/train/config/internal/config_keys.h"
#include "trireme/train/run/run.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

struct Rejection {
  const char* name;
  int ranks;
  void (*change)(RunConfig&);
  const char* message;
  const char* nearest;  ///< changes of the nearest valid plan; null: none is known
};

std::ostream& operator<<(std::ostream& out, const Rejection& row) { return out << row.name; }

void pipedream(RunConfig& config) {
  config.parallel.pipeline = 2;
  config.parallel.schedule = "pipedream";
  config.train.clip_norm = 0;
}

const Rejection kRejections[] = {
    {"NoSuchNumberOfReplicas", 2, [](RunConfig& c) { c.parallel.data = 3; },
     "parallel.data = 3 needs as many ranks, found 2", "parallel.data = 0"},
    {"StagesThatDoNotFitTheRanks", 3, [](RunConfig& c) { c.parallel.pipeline = 2; }, "does not fit 3 ranks",
     "parallel.pipeline = 1"},
    {"ABatchTooSmallForItsParts", 2, [](RunConfig& c) { c.train.accumulation = 33; },
     "cannot be split over 2 ranks x train.accumulation = 33", "train.accumulation = 32"},
    {"ABatchTooSmallForMicrobatches", 2,
     [](RunConfig& c) {
       c.parallel.pipeline = 2;
       c.parallel.microbatches = 65;
     },
     "it needs at least 65 samples", "parallel.microbatches = 64"},
    {"ARampWithSizesLeftOver", 2,
     [](RunConfig& c) {
       c.train.batch_ramp_sizes = {16, 32};
       c.train.batch_ramp_steps = {1};
     },
     "train.batch_ramp_sizes has 2 sizes, and train.batch_ramp_steps 1 step: ",
     "train.batch_ramp_sizes = [16]"},
    {"ARampThatDoesNotRise", 2,
     [](RunConfig& c) {
       c.train.batch_ramp_sizes = {32, 16};
       c.train.batch_ramp_steps = {1, 2};
     },
     "batches of 32 samples are followed by those of 16",
     "train.batch_ramp_sizes = [], train.batch_ramp_steps = []"},
    {"ARampBeyondTheGlobalBatch", 2,
     [](RunConfig& c) {
       c.train.batch_ramp_sizes = {64};
       c.train.batch_ramp_steps = {1};
     },
     "batches of 64 samples are followed by those of train.global_batch = 64",
     "train.batch_ramp_sizes = [], train.batch_ramp_steps = []"},
    {"ARampWithEqualSteps", 2,
     [](RunConfig& c) {
       c.train.batch_ramp_sizes = {16, 32};
       c.train.batch_ramp_steps = {3, 3};
     },
     "batches of 32 samples end after 3 steps, and begin after 3",
     "train.batch_ramp_sizes = [], train.batch_ramp_steps = []"},
    {"ARampThatBeginsBelowItsParts", 2,
     [](RunConfig& c) {
       c.train.accumulation = 8;
       c.train.batch_ramp_sizes = {8, 32};
       c.train.batch_ramp_steps = {1, 2};
     },
     "a batch of train.batch_ramp_sizes, 8, cannot be split over 2 ranks x train.accumulation = 8: it needs "
     "at "
     "least 16 samples",
     "train.accumulation = 4"},
    {"AnUnknownSchedule", 2,
     [](RunConfig& c) {
       c.parallel.pipeline = 2;
       c.parallel.schedule = "1f2b";
     },
     "did you mean '1f1b'?", "parallel.schedule = \"1f1b\""},
    {"MoreStagesThanLayers", 2,
     [](RunConfig& c) {
       c.parallel.pipeline = 2;
       c.parallel.schedule = "interleaved-1f1b";
       c.parallel.chunks = 9;
     },
     "18 stages, the model only 2 layers", "parallel.chunks = 1"},
    {"DealingAnewUnderPipedream", 2,
     [](RunConfig& c) {
       pipedream(c);
       c.data.balance = "dynamic";
     },
     "needs all their sizes in advance", "parallel.schedule = \"1f1b\""},
    {"DealingAnewToRanksThatDrift", 2,
     [](RunConfig& c) {
       c.parallel.mode = "ps";
       c.train.clip_norm = 0;
       c.served.staleness = 3;
       c.data.balance = "dynamic";
     },
     "ps.staleness = 3: ranks do not wait for each other", "data.balance = \"count\""},
    {"CompensatingDelaysWithoutAny", 2,
     [](RunConfig& c) {
       c.parallel.mode = "ps";
       c.train.clip_norm = 0;
       c.served.delay_compensation = 0.5;
     },
     "with ps.staleness = 0 gradients are of the values that they meet", "ps.delay_compensation = 0.0"},
    {"PriorityOfClippedGradients", 2,
     [](RunConfig& c) {
       c.parallel.priority = "forward";
       c.train.clip_norm = 2;
     },
     "the norm of all gradients is known only after the last one", "train.clip_norm = 0.0"},
    {"PriorityOfCompressedGradients", 2,
     [](RunConfig& c) {
       c.parallel.priority = "forward";
       c.train.clip_norm = 0;
       c.parallel.compression = "top-k";
     },
     "slices are reduced uncompressed", "parallel.compression = \"none\""},
    {"PriorityOfStepsThatAreLeftOut", 2,
     [](RunConfig& c) {
       c.parallel.priority = "forward";
       c.train.clip_norm = 0;
       c.train.non_finite = "skip";
     },
     "whether a step is skipped is known only after the last gradient", "train.non_finite = \"stop\""},
    {"PriorityOfSharedUpdates", 2,
     [](RunConfig& c) {
       c.parallel.priority = "forward";
       c.train.clip_norm = 0;
       c.parallel.zero = 1;
     },
     "shards updates over ranks", "parallel.zero = 0"},
    {"DealingAnewToSites", 2,
     [](RunConfig& c) {
       c.parallel.local_steps = 4;
       c.data.balance = "dynamic";
     },
     "parallel.local_steps = 4: sites do not sum gradients of one batch", "parallel.local_steps = 1"},
    {"DealingAnewWithExactBits", 2,
     [](RunConfig& c) {
       c.run.exact = true;
       c.data.balance = "dynamic";
     },
     "bits depend on which samples are summed together", "run.exact = false"},
    {"RoundedActivationsWithExactBits", 2,
     [](RunConfig& c) {
       c.run.exact = true;
       c.parallel.pipeline = 2;
       c.parallel.activation_compression = "int8";
     },
     "rounds values sent between ranks", "parallel.activation_compression = \"none\""},
    {"NoiseOfOneMicrobatch", 1, [](RunConfig& c) { c.train.noise_scale_every_steps = 1; },
     "train.noise_scale_every_steps = 1: the noise is measured by the differences between micro-batches",
     "train.accumulation = 2"},
    {"NoiseOfPipedream", 2,
     [](RunConfig& c) {
       pipedream(c);
       c.train.noise_scale_every_steps = 1;
     },
     "there is no gradient of all stages", "parallel.schedule = \"1f1b\""},
    {"NoiseOverServers", 2,
     [](RunConfig& c) {
       c.parallel.mode = "ps";
       c.train.clip_norm = 0;
       c.train.noise_scale_every_steps = 1;
     },
     "no rank has their mean", "parallel.mode = \"all-reduce\""},
    {"NoiseOfCompressedGradients", 2,
     [](RunConfig& c) {
       c.parallel.compression = "top-k";
       c.train.noise_scale_every_steps = 1;
     },
     "is not the mean of the gradients of that step", "parallel.compression = \"none\""},
    {"NoiseOfCutLayers", 4,
     [](RunConfig& c) {
       c.parallel.tensor = 2;
       c.train.noise_scale_every_steps = 1;
     },
     "parallel.tensor = 2: it shards layers", "parallel.tensor = 1"},
    {"NoiseOfAnExactRun", 2,
     [](RunConfig& c) {
       c.run.exact = true;
       c.train.noise_scale_every_steps = 1;
     },
     "squares are summed rank by rank", "run.exact = false"},
    {"TheFastestKernelsOfAnExactRun", 1,
     [](RunConfig& c) {
       c.run.exact = true;
       c.comm.cuda.benchmark = true;
     },
     "the kernel that was fastest decides the bits", "cuda.benchmark = false"},
    {"TheFastestKernelsAndTheSameBits", 1,
     [](RunConfig& c) {
       c.comm.cuda.benchmark = true;
       c.comm.cuda.deterministic = true;
     },
     "which cuda.deterministic forbids", nullptr},
    {"PipedreamWithClipping", 2,
     [](RunConfig& c) {
       pipedream(c);
       c.train.clip_norm = 0.5;
     },
     "train.clip_norm = 0.5", "train.clip_norm = 0.0"},
    {"PipedreamWithLossScaling", 2,
     [](RunConfig& c) {
       pipedream(c);
       c.train.precision = "fp16";
     },
     "loss scale", "train.precision = \"bf16\""},
    {"PipedreamWithSkippedSteps", 2,
     [](RunConfig& c) {
       pipedream(c);
       c.train.non_finite = "skip";
     },
     "skip a step together", "train.non_finite = \"stop\""},
    {"PipedreamWithRounds", 2,
     [](RunConfig& c) {
       pipedream(c);
       c.train.accumulation = 2;
     },
     "flush", "train.accumulation = 1"},
    {"PipedreamSideBySide", 4, [](RunConfig& c) { pipedream(c); }, "cannot share gradients",
     "parallel.schedule = \"1f1b\""},
    {"PipedreamWithATimeline", 2,
     [](RunConfig& c) {
       pipedream(c);
       c.run.timeline = "t.html";
     },
     "use run.trace", "run.trace = \"trace.json\", run.timeline = \"\""},
    {"RoundRobinOverOtherRanks", 3,
     [](RunConfig& c) {
       pipedream(c);
       c.parallel.pipeline = 3;
       c.parallel.schedule = "1f1b-rr";
       c.parallel.stage_replicas = {2, 2};
     },
     "(3), found 4", "parallel.stage_replicas = []"},
    {"RoundRobinWithMicrobatchesLeftOver", 3,
     [](RunConfig& c) {
       pipedream(c);
       c.parallel.pipeline = 3;
       c.parallel.schedule = "1f1b-rr";
       c.parallel.microbatches = 3;
     },
     "3 micro-batches do not fill 2 replicas evenly", "parallel.microbatches = 0"},
    {"RoundRobinSideBySide", 4,
     [](RunConfig& c) {
       pipedream(c);
       c.parallel.schedule = "1f1b-rr";
       c.parallel.stage_replicas = {1, 1};
     },
     "cannot share gradients", "parallel.schedule = \"1f1b\", parallel.stage_replicas = []"},
    {"RoundRobinWithVerticalSync", 3,
     [](RunConfig& c) {
       pipedream(c);
       c.parallel.pipeline = 3;
       c.parallel.schedule = "1f1b-rr";
       c.parallel.vertical_sync = true;
     },
     "vertical sync needs stages that step alike", "parallel.vertical_sync = false"},
    {"ReplicasOfStagesOfAnotherSchedule", 2,
     [](RunConfig& c) {
       pipedream(c);
       c.parallel.stage_replicas = {1, 1};
     },
     "is for pipelines with parallel.schedule = \"1f1b-rr\"", "parallel.stage_replicas = []"},
    {"VerticalSyncOfAScheduleWithout", 2,
     [](RunConfig& c) {
       c.parallel.pipeline = 2;
       c.parallel.vertical_sync = true;
     },
     "vertical sync is for pipedream", "parallel.vertical_sync = false"},
    {"AWarmUpLongerThanTheRun", 1, [](RunConfig& c) { c.learning_rate.warmup_steps = 5000; },
     "lr.warmup_steps = 5000 is longer than the run", nullptr},
    {"ALearningRateWithoutItsSteps", 1, [](RunConfig& c) { c.learning_rate.schedule = "step"; },
     "period_steps", nullptr},
    {"TraceStepsWithoutATrace", 1, [](RunConfig& c) { c.run.trace_steps = "5:7"; },
     "limits a trace, but none is asked for", "run.trace = \"trace.json\""},
    {"TraceStepsThatAreNoSpan", 1,
     [](RunConfig& c) {
       c.run.trace = "t.json";
       c.run.trace_steps = "7";
     },
     "no span of steps", "run.trace_steps = \"\""},
    {"ALossScaleOutsideItsBounds", 1,
     [](RunConfig& c) {
       c.train.precision = "fp16";
       c.scaler.initial = 2 * c.scaler.most;
     },
     "not between scaler.least", "scaler.initial = 16777216.0"},
    {"AModelThatCannotTakeTheData", 1, [](RunConfig& c) { c.model.name = "gpt"; },
     "cannot take data.name = \"synthetic\"", nullptr},
    {"SeveralReasonsAtOnce", 4,
     [](RunConfig& c) {
       c.parallel.pipeline = 2;
       c.parallel.vertical_sync = true;
       c.train.accumulation = 17;
     },
     "it needs at least 272 samples", "train.accumulation = 4, parallel.vertical_sync = false"},
    {"APipelineLongerThanTheModel", 4, [](RunConfig& c) { c.parallel.pipeline = 4; },
     "4 stages, the model only 2 layers", "parallel.pipeline = 2"},
    {"ReplicasOfPipelinesThatDoNotFit", 4,
     [](RunConfig& c) {
       c.parallel.pipeline = 2;
       c.parallel.data = 3;
     },
     "does not fit 4 ranks; start it with -n 6", "parallel.data = 0"},
    {"AnAsynchronousScheduleWithClippingInFp16", 2,
     [](RunConfig& c) {
       pipedream(c);
       c.train.clip_norm = 0.5;
       c.train.precision = "fp16";
       c.train.non_finite = "skip";
     },
     "train.clip_norm = 0.5", "parallel.schedule = \"1f1b\""},
};

class Rejected : public testing::TestWithParam<Rejection> {
 protected:
  RunConfig config() const {
    RunConfig config;
    config.run.folder = folder_.path().string();
    config.data.name = "synthetic";
    config.model.hidden = {8};
    config.train.global_batch = 64;
    config.train.max_steps = 2;
    GetParam().change(config);
    return config;
  }
  template <class Body>
  void expect_rejection(const Body& body) const {
    EXPECT_THAT(body, ThrowsMessage<InvalidArgument>(HasSubstr(GetParam().message)));
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path())) << "a refused run leaves nothing behind";
  }
  test::TemporaryFolder folder_;
};

TEST_P(Rejected, ByTheCommandLine) {
  expect_rejection([&] { check_run_config(config(), GetParam().ranks); });
}

TEST_P(Rejected, ByATrainer) {
  const RunConfig refused = config();
  const data::DataSource data = data::open_data(refused.data);
  expect_rejection([&] {
    comm::run_ranks_as_threads(
        GetParam().ranks, [&](comm::Context& context) { const Trainer trainer(refused, context, data); });
  });
}

TEST_P(Rejected, ByARunOfAProgram) {
  const RunConfig refused = config();
  expect_rejection([&] {
    comm::run_ranks_as_threads(GetParam().ranks,
                               [&](comm::Context& context) { run_training(refused, context); });
  });
}

TEST_P(Rejected, WithTheNearestPlanThatWorks) {
  std::string message;
  try {
    check_run_config(config(), GetParam().ranks);
  } catch (const InvalidArgument& refusal) {
    message = refusal.what();
  }
  const int ranks = GetParam().ranks;
  const std::string begin =
      text("; the nearest plan that works on ", ranks, ranks == 1 ? " rank: " : " ranks: ");
  const std::size_t at = message.find(begin);
  if (GetParam().nearest == nullptr) {
    EXPECT_EQ(at, std::string::npos) << message;
    return;
  }
  ASSERT_NE(at, std::string::npos) << message;
  const std::string nearest = message.substr(at + begin.size());
  EXPECT_EQ(nearest, GetParam().nearest);
  const test::TemporaryFolder other;
  write_file_atomic(other / "run.toml", describe(config()));
  std::vector<std::string> changes;
  for (const std::string& change : split(nearest, ',')) changes.emplace_back(trim(change));
  EXPECT_NO_THROW(check_run_config(load_run_config(other / "run.toml", changes), ranks));
}

INSTANTIATE_TEST_SUITE_P(Table, Rejected, testing::ValuesIn(kRejections),
                         [](const auto& row) { return std::string(row.param.name); });

/// A value that the key does not allow, in the type of the key. Nothing if all values are allowed.
std::optional<ConfigValue> not_allowed(const ConfigKey& key) {
  const Allowed& allowed = key.allowed;
  const ConfigValue held = key.get({});
  const double number = std::isfinite(allowed.least)   ? allowed.least - 1
                        : std::isfinite(allowed.above) ? allowed.above
                        : std::isfinite(allowed.below) ? allowed.below
                        : std::isfinite(allowed.most)  ? allowed.most + 1
                                                       : std::nan("");
  const bool is_bounded = !std::isnan(number);
  if (std::holds_alternative<std::int64_t>(held) && is_bounded)
    return ConfigValue(static_cast<std::int64_t>(number));
  if (std::holds_alternative<double>(held) && is_bounded) return ConfigValue(number);
  if (std::holds_alternative<std::vector<std::int64_t>>(held) && is_bounded)
    return ConfigValue(std::vector{static_cast<std::int64_t>(number)});
  const bool is_limited = allowed.names || allowed.path != PathForm::kAny;
  if (std::holds_alternative<std::string>(held) && is_limited) return ConfigValue(std::string("no/../name"));
  if (std::holds_alternative<std::vector<std::string>>(held) && is_limited)
    return ConfigValue(std::vector<std::string>{"no/name"});
  return std::nullopt;
}

TEST(RejectedValues, TrainerRejectsThemForEveryKey) {
  const RunConfig sound = [] {
    RunConfig config;
    config.data.name = "synthetic";
    return config;
  }();
  const data::DataSource data = data::open_data(sound.data);
  int num_keys = 0;
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    for (const ConfigKey& key : config_key_table()) {
      const std::optional<ConfigValue> value = not_allowed(key);
      if (!value) continue;
      ++num_keys;
      RunConfig config = sound;
      key.set(config, *value);
      EXPECT_THAT([&] { const Trainer trainer(config, context, data); },
                  ThrowsMessage<InvalidArgument>(HasSubstr(key.name + " = ")))
          << key.name;
    }
  });
  EXPECT_GT(num_keys, 40);
}

}  // namespace
}  // namespace trireme::train
