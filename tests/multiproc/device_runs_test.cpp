// Whole runs on the mock device, whose memory the host cannot access, give the bits of the same runs on the
// CPU. They cover models and pipelines of all kinds, checkpoints that one device saves and the other loads,
// and verify.

#include <gmock/gmock.h>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trained_run.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using testing::HasSubstr;
using Settings = std::vector<std::string>;

ChildResult run_on(const std::string& device, std::vector<std::string> words, const Settings& settings) {
  words.insert(words.begin(), bin("trireme"));
  for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
  words.insert(words.end(), {"--set", "train.device=" + device, "--set", "comm.torch_threads=1", "--set",
                             "comm.timeout_s=60", "--set", "train.convolution=aten"});
  std::map<std::string, std::string> variables;
  if (device == "stand_in") variables["LD_PRELOAD"] = bin("stand_in_device.so");
  return run(words, variables, 150);
}

struct Case {
  const char* name;
  int ranks = 2;
  Settings settings = {};
};

const Case kCases[] = {
    {.name = "CnnZeroBubble",
     .settings = {"model.name=cnn", "parallel.pipeline=2", "parallel.schedule=zb-v",
                  "parallel.partition=parameters"}},
    {.name = "ActivationsInEightBits",
     .settings = {"parallel.pipeline=2", "parallel.partition=parameters",
                  "parallel.activation_compression=int8"}},
    {.name = "MeasuredCutsRecomputeAverages",
     .settings = {"parallel.pipeline=2", "parallel.recompute=true", "train.ema_decay=0.9"}},
    {.name = "TwoVersions", .settings = {"parallel.pipeline=2", "parallel.schedule=pipedream-2bw"}},
    {.name = "Bf16", .settings = {"train.precision=bf16"}},
    {.name = "Fp16", .settings = {"train.precision=fp16", "scaler.initial=1024"}},
    {.name = "LambClasses",
     .settings = {"optimizer.name=lamb", "objective.class_weights=[1, 2, 1, 1, 1, 1, 1, 1, 1, 3]",
                  "objective.metrics=[\"accuracy\", \"top_k\", \"perplexity\"]"}},
    {.name = "SharedDevicesStages",
     .ranks = 6,
     .settings = {"parallel.pipeline=3", "model.hidden=[32, 32]", "comm.backend=shm",
                  "parallel.compression=bf16"}},
    {.name = "TopK", .settings = {"parallel.compression=top-k", "parallel.compression_fraction=0.05"}},
    {.name = "Dgc",
     .settings = {"parallel.compression=dgc", "optimizer.name=sgd", "optimizer.momentum=0.9",
                  "train.non_finite=skip"}},
    {.name = "Int8ByPieces", .ranks = 3, .settings = {"parallel.compression=int8"}},
    {.name = "Int8OfShards",
     .settings = {"parallel.compression=int8", "parallel.zero=3", "parallel.weight_compression=int8",
                  "comm.backend=gloo"}},
    {.name = "TopKOfShards", .settings = {"parallel.compression=top-k", "parallel.zero=2"}},
};

/// A device adds the encoded values in another order.
const Case kRoundedCases[] = {
    {.name = "PowerSgd", .settings = {"parallel.compression=power-sgd"}},
    {.name = "Sign", .ranks = 3, .settings = {"parallel.compression=sign"}},
    {.name = "OneBit",
     .settings = {"parallel.compression=one-bit", "parallel.compression_warmup_steps=1",
                  "optimizer.name=adamw", "train.clip_norm=0"}},
    {.name = "SignOfShards", .settings = {"parallel.compression=sign", "parallel.zero=3"}},
};

std::ostream& operator<<(std::ostream& out, const Case& row) { return out << row.name; }

class DeviceRuns : public testing::Test {
 protected:
  /// Runs or resumes the run of that name in the folder.
  TrainedRun trained(const std::string& name, const std::string& device, int ranks, Settings settings,
                     const Settings& more_words = {}) const {
    settings.insert(settings.end(), {"run.folder=" + folder_.path().string(), "run.name=" + name,
                                     "run.log_every_steps=1", "train.accumulation=1"});
    Settings words = {"train", checkout("examples/quick.toml"), "-n", text(ranks)};
    words.insert(words.end(), more_words.begin(), more_words.end());
    const ChildResult result = run_on(device, words, settings);
    if (result.exit_code != 0) throw std::runtime_error(text(name, ": ", result.out, result.err));
    return read_run(folder_ / name);
  }

  TemporaryFolder folder_;
};

class DeviceRunsOf : public DeviceRuns, public testing::WithParamInterface<Case> {};

TEST_P(DeviceRunsOf, HaveTheBitsOfTheCpu) {
  Settings settings = GetParam().settings;
  settings.insert(settings.end(), {"train.max_steps=3", "train.global_batch=120"});
  const TrainedRun here = trained("here", "cpu", GetParam().ranks, settings);
  const TrainedRun there = trained("there", "stand_in", GetParam().ranks, settings);
  EXPECT_EQ(there.weights_xxh3, here.weights_xxh3);
  EXPECT_EQ(there.losses, here.losses);
}

INSTANTIATE_TEST_SUITE_P(Table, DeviceRunsOf, testing::ValuesIn(kCases),
                         [](const auto& row) { return std::string(row.param.name); });

class RoundedDeviceRunsOf : public DeviceRuns, public testing::WithParamInterface<Case> {};

/// Sums of f32 differ by at most 272 2^-24 of their magnitudes (DeviceCodecs.RoundScaleOfBlockAsSum). The
/// losses of the first steps differ by at most three times that, plus the effect of a changed sign.
TEST_P(RoundedDeviceRunsOf, HaveLossesOfCpuUpToRounding) {
  Settings settings = GetParam().settings;
  settings.insert(settings.end(), {"train.max_steps=3", "train.global_batch=120"});
  const TrainedRun here = trained("here", "cpu", GetParam().ranks, settings);
  const TrainedRun there = trained("there", "stand_in", GetParam().ranks, settings);
  ASSERT_EQ(there.losses.size(), here.losses.size());
  for (std::size_t step = 0; step < here.losses.size(); ++step)
    EXPECT_NEAR(there.losses[step] / here.losses[step], 1, 1e-4) << step;
}

INSTANTIATE_TEST_SUITE_P(Table, RoundedDeviceRunsOf, testing::ValuesIn(kRoundedCases),
                         [](const auto& row) { return std::string(row.param.name); });

TEST_F(DeviceRuns, ContinueOnAnotherDevice) {
  for (const char* compression : {"none", "top-k"}) {
    const auto with_steps = [&](int steps) {
      return Settings{"checkpoint.every_steps=2", "optimizer.name=adamw",
                      text("parallel.compression=", compression), text("train.max_steps=", steps)};
    };
    const std::string name = text("moved ", compression);
    const TrainedRun whole = trained(text("whole ", compression), "cpu", 2, with_steps(8));
    trained(name, "stand_in", 2, with_steps(4));
    trained(name, "cpu", 2, with_steps(6), {"--resume"});
    const TrainedRun moved = trained(name, "stand_in", 2, with_steps(8), {"--resume"});
    EXPECT_EQ(moved.weights_xxh3, whole.weights_xxh3) << compression;
  }
}

TEST_F(DeviceRuns, ReportMemoryOfDeviceAndHostSeparately) {
  trained("run", "stand_in", 2, {"train.max_steps=3", "optimizer.name=adamw"});
  const std::string summary = read_file(folder_ / "run" / "summary.json");
  for (const char* kind : {"weights", "gradients", "optimizer", "activations"})
    EXPECT_THAT(summary, HasSubstr(text("memory_device_peak_", kind, "_bytes")));
  EXPECT_THAT(summary, testing::Not(HasSubstr("memory_peak_weights_bytes")));
  const Settings words = {"memory", checkout("examples/quick.toml"), "-n", "2", "--limit", "1"};
  EXPECT_THAT(run_on("stand_in", words, {}).out, HasSubstr("tensors: memory of the device (stand_in)"));
  EXPECT_THAT(run_on("cpu", words, {}).out, testing::Not(HasSubstr("memory of the device")));
}

TEST_F(DeviceRuns, AreVerified) {
  for (const int pipeline : {1, 2}) {
    const ChildResult result =
        run_on("stand_in", {"verify", checkout("examples/quick.toml"), "-n", "2", "--steps", "2"},
               {text("parallel.pipeline=", pipeline), "parallel.microbatches=4"});
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    EXPECT_THAT(result.out, HasSubstr("on 2 ranks and on one: equal"));
  }
}

TEST_F(DeviceRuns, RejectADeviceThatIsNotThere) {
  const auto refusal = [&](const std::string& device, const Settings& settings, int ranks) {
    const ChildResult result =
        run_on(device, {"train", checkout("examples/quick.toml"), "-n", text(ranks)}, settings);
    EXPECT_EQ(result.exit_code, 2) << result.out << result.err;
    return result.out + result.err;
  };
  EXPECT_THAT(refusal("stand_in", {}, 5),
              HasSubstr("has no stand_in device of its own: there are 4; start at most 4 ranks per host"));
  if (!std::filesystem::exists("/dev/nvidia0")) {
    EXPECT_THAT(refusal("cuda", {}, 1),
                HasSubstr("train.device \"cuda\" cannot be used here: no NVIDIA GPU"));
  }
}

}  // namespace
}  // namespace trireme::test
