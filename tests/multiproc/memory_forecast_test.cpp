// `trireme memory`: the estimate before a run matches the memory that the run uses.
#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using testing::HasSubstr;
using testing::Not;

struct ForecastCase {
  const char* name;
  int num_ranks;
  std::vector<std::string> settings;
};

std::ostream& operator<<(std::ostream& out, const ForecastCase& mode) { return out << mode.name; }

/// A GPT whose activations, weights and optimizer state are all significant. Its cuts do not depend on
/// measured times.
std::vector<std::string> words_of(const std::string& command, const ForecastCase& mode) {
  std::vector<std::string> words = {bin("trireme"), command, checkout("examples/gpt_char.toml"), "-n",
                                    text(mode.num_ranks)};
  std::vector<std::string> settings = {text("data.path=", checkout("LICENSE")),
                                       "data.block=64",
                                       "model.layers=4",
                                       "model.width=96",
                                       "model.heads=4",
                                       "train.global_batch=16",
                                       "train.epochs=1000",
                                       "train.max_steps=4",
                                       "lr.schedule=constant",
                                       "lr.warmup_steps=0",
                                       "comm.torch_threads=1",
                                       "checkpoint.every_steps=0",
                                       "parallel.partition=parameters"};
  settings.insert(settings.end(), mode.settings.begin(), mode.settings.end());
  for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
  return words;
}

class MemoryForecast : public testing::TestWithParam<ForecastCase> {};

TEST_P(MemoryForecast, IsWithinFivePercentOfMeasuredRun) {
  const TemporaryFolder folder;
  std::vector<std::string> words = words_of("memory", GetParam());
  words.emplace_back("--json");
  const ChildResult told = run(words, {}, 60);
  ASSERT_EQ(told.exit_code, 0) << told.out << told.err;
  const double expected = nlohmann::json::parse(told.out).at("modes").at(0).at("peak_bytes").at("total");

  words = words_of("train", GetParam());
  for (const std::string& setting : {text("run.folder=", folder.path().string()), std::string("run.name=r"),
                                     std::string("eval.every_steps=1000000")}) {
    words.insert(words.end(), {"--set", setting});
  }
  const ChildResult trained = run(words, {}, 60);
  ASSERT_EQ(trained.exit_code, 0) << trained.out << trained.err;
  double taken = 0;
  const auto summary = nlohmann::json::parse(read_file(folder / "r/summary.json"));
  for (const auto& [key, value] : summary.items()) {
    if (key.starts_with("memory_peak_")) taken += value.get<double>();
  }
  EXPECT_GT(expected, 0.95 * taken);
  EXPECT_LT(expected, 1.05 * taken);
}

const std::vector<std::string> kStages = {"parallel.pipeline=2", "parallel.microbatches=4"},
                               kSavedFromFiles = {"offload.optimizer=files", "offload.part_mib=0.25",
                                                  "checkpoint.every_steps=1"};

/// Gradients of single parameters are larger than the activations.
const std::vector<std::string> kWide = {"data.block=8", "model.layers=2", "model.width=256",
                                        "train.global_batch=8"};

std::vector<std::string> wide_and(const std::vector<std::string>& more) {
  std::vector<std::string> settings = kWide;
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

std::vector<std::string> stages_and(const std::vector<std::string>& more) {
  std::vector<std::string> settings = kStages;
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

INSTANTIATE_TEST_SUITE_P(
    Every, MemoryForecast,
    testing::Values(ForecastCase{"OneRank", 1, {}}, ForecastCase{"Accumulated", 1, {"train.accumulation=2"}},
                    ForecastCase{"Replicas", 2, {}}, ForecastCase{"Zero1", 2, {"parallel.zero=1"}},
                    ForecastCase{"Zero2", 2, {"parallel.zero=2"}},
                    ForecastCase{"Zero3", 2, {"parallel.zero=3"}},
                    ForecastCase{"Zero3Gloo", 2, {"parallel.zero=3", "comm.backend=gloo"}},
                    ForecastCase{"Saved", 2, {"checkpoint.every_steps=1"}},
                    ForecastCase{"Zero3Saved", 2, {"parallel.zero=3", "checkpoint.every_steps=1"}},
                    ForecastCase{"SavedFromFiles", 2, kSavedFromFiles},
                    ForecastCase{"Recomputed", 2, {"train.recompute_layers=[\"*\"]"}},
                    ForecastCase{"Budget", 2, {"train.activation_budget=10MiB"}},
                    ForecastCase{"Bf16", 2, {"train.precision=bf16"}}, ForecastCase{"Stages1f1b", 2, kStages},
                    ForecastCase{"StagesGpipe", 2, stages_and({"parallel.schedule=gpipe"})},
                    ForecastCase{"StagesGpipeRecomputed", 2,
                                 stages_and({"parallel.schedule=gpipe", "parallel.recompute=true"})},
                    ForecastCase{"StagesZeroBubble", 2, stages_and({"parallel.schedule=zb-h1"})},
                    ForecastCase{"WideZeroBubble", 2, wide_and(stages_and({"parallel.schedule=zb-h1"}))},
                    ForecastCase{"WideZeroBubbleZero1", 4,
                                 wide_and(stages_and({"parallel.schedule=zb-h1", "parallel.zero=1"}))},
                    ForecastCase{"WideZeroBubbleZero3", 4,
                                 wide_and(stages_and({"parallel.schedule=zb-h1", "parallel.zero=3"}))},
                    ForecastCase{"StagesInterleaved", 2, stages_and({"parallel.schedule=interleaved-1f1b"})},
                    ForecastCase{"StagesOfReplicas", 4, stages_and({"parallel.zero=1"})},
                    ForecastCase{"Tensor", 2, {"parallel.tensor=2"}},
                    ForecastCase{"Context", 2, {"parallel.context=2"}},
                    ForecastCase{"TensorBudget", 2, {"parallel.tensor=2", "train.activation_budget=10MiB"}}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(MemoryCommand, ListsOtherModesAndTheirFit) {
  const ChildResult all = run(words_of("memory", {"", 2, {}}), {}, 60);
  ASSERT_EQ(all.exit_code, 0) << all.err;
  for (const char* mode : {"as configured ", "parallel.zero=1 ", "parallel.zero=3 ", "parallel.pipeline=2 ",
                           "parallel.tensor=2 ", "parallel.context=2 ", "train.recompute_layers=[\"*\"] "})
    EXPECT_THAT(all.out, HasSubstr(mode));
  EXPECT_THAT(all.out, HasSubstr(" yes"));

  std::vector<std::string> words = words_of("memory", {"", 2, {}});
  words.emplace_back("--json");
  const ChildResult told = run(words, {}, 60);
  ASSERT_EQ(told.exit_code, 0) << told.err;
  double least = 1e18, most = 0;
  for (const auto& mode : nlohmann::json::parse(told.out).at("modes")) {
    const double process = mode.at("process_bytes");
    least = std::min(least, process);
    most = std::max(most, process);
  }
  words.back() = "--limit";
  words.push_back(text((least + most) / 2 / 0x1p30));
  const ChildResult limited = run(words, {}, 60);
  ASSERT_EQ(limited.exit_code, 0) << limited.err;
  EXPECT_THAT(limited.out, HasSubstr(" no"));
  EXPECT_THAT(limited.out, HasSubstr(" yes")) << "something fits:\n" << limited.out;
  EXPECT_THAT(limited.out, HasSubstr("as --limit says"));
}

TEST(MemoryCommand, LeavesOutModesThatCannotBe) {
  const ChildResult eight = run(words_of("memory", {"", 8, {}}), {}, 60);
  ASSERT_EQ(eight.exit_code, 0) << eight.err;
  EXPECT_THAT(eight.out, HasSubstr("parallel.zero=3 "));
  EXPECT_THAT(eight.out, Not(HasSubstr("parallel.tensor=8 "))) << "4 heads are not cut in 8";
  EXPECT_THAT(eight.out, Not(HasSubstr("parallel.pipeline=8 "))) << "nor 6 layers";
}

TEST(MemoryCommand, RejectsUnsupportedConfigurations) {
  const ChildResult offloaded = run(words_of("memory", {"", 1, {"offload.activations=files"}}), {}, 60);
  EXPECT_EQ(offloaded.exit_code, 2);
  EXPECT_THAT(offloaded.err, HasSubstr("offload.activations"));
  const ChildResult served = run(words_of("memory", {"", 2, {"parallel.mode=ps"}}), {}, 60);
  EXPECT_EQ(served.exit_code, 2);
  EXPECT_THAT(served.err, HasSubstr("parallel.mode"));
}

}  // namespace
}  // namespace trireme::test
