// The processes of a run stay within the memory that `trireme memory` estimates. The kernel enforces the
// limit.
#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using Settings = std::vector<std::string>;
constexpr double kMib = 1 << 20;
/// The limit of a container as a multiple of the estimate.
constexpr double kRoom = 1.1;
/// Clearly too small: less than the tensors and code of a process.
constexpr double kTooLittle = 0.75;

/// Two ranks, six layers of 4 MiB, adamw.
std::vector<std::string> mlp_command(const std::string& command, const Settings& mode) {
  std::vector<std::string> words = {bin("trireme"), command, checkout("examples/quick.toml"), "-n", "2"};
  Settings settings = {"model.hidden=[1024,1024,1024,1024,1024,1024]",
                       "optimizer.name=adamw",
                       "train.accumulation=1",
                       "train.global_batch=8",
                       "train.epochs=1000",
                       "train.max_steps=50",
                       "checkpoint.every_steps=0",
                       "lr.schedule=constant",
                       "lr.warmup_steps=0",
                       "comm.torch_threads=1",
                       "parallel.partition=parameters"};
  settings.insert(settings.end(), mode.begin(), mode.end());
  for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
  return words;
}

/// The estimates of `trireme memory`: `mode` first, then other modes.
nlohmann::json modes_told(const Settings& mode) {
  std::vector<std::string> words = mlp_command("memory", mode);
  words.emplace_back("--json");
  const ChildResult told = run(words, {}, 60);
  EXPECT_EQ(told.exit_code, 0) << told.out << told.err;
  return nlohmann::json::parse(told.out).at("modes");
}

/// Fifty steps. Each process may have this number of bytes of writable private memory, used or not. Stacks
/// are small, since a thread uses little of its own.
ChildResult train_within(double bytes, const Settings& mode) {
  const TemporaryFolder folder;
  std::vector<std::string> words = {"bash", "-c", "ulimit -S -s 512 && ulimit -d \"$0\" && exec \"$@\"",
                                    text(static_cast<std::int64_t>(bytes / 1024))};
  const std::vector<std::string> train = mlp_command("train", mode);
  words.insert(words.end(), train.begin(), train.end());
  for (const std::string& setting : {text("run.folder=", folder.path().string()), std::string("run.name=r"),
                                     std::string("eval.every_steps=1000000")})
    words.insert(words.end(), {"--set", setting});
  return run(words, {}, 100);
}

/// The private memory of a rank, since the limit excludes memory that is shared.
double own_bytes(const nlohmann::json& told) {
  return told.at("process_bytes").get<double>() - told.at("shared_bytes").get<double>();
}

void expect_enough(const Settings& mode, const nlohmann::json& told) {
  const double bytes = kRoom * own_bytes(told);
  const ChildResult trained = train_within(bytes, mode);
  EXPECT_EQ(trained.exit_code, 0) << join(mode, " ") << " within " << bytes / kMib << " MiB: " << trained.out
                                  << trained.err;
}

void expect_too_little(const Settings& mode, const nlohmann::json& told) {
  const double bytes = kTooLittle * own_bytes(told);
  const ChildResult trained = train_within(bytes, mode);
  EXPECT_FALSE(trained.timed_out) << join(mode, " ") << trained.out << trained.err;
  EXPECT_NE(trained.exit_code, 0) << join(mode, " ") << ": " << bytes / kMib << " MiB are enough";
}

class ProcessMemory : public testing::TestWithParam<const char*> {
 protected:
  /// `mode` over the backend of the test.
  Settings with(Settings mode) const {
    mode.push_back(text("comm.backend=", GetParam()));
    return mode;
  }
};

TEST_P(ProcessMemory, FiftyStepsAreWithinTenth) {
  const nlohmann::json modes = modes_told(with({}));
  const auto told = [&](const Settings& mode) {
    const auto found =
        std::ranges::find_if(modes, [&](const auto& each) { return each.at("settings") == mode; });
    if (found == modes.end()) throw std::out_of_range(join(mode, " ") + ": not told: " + modes.dump(1));
    return *found;
  };
  for (const Settings& mode : std::vector<Settings>{
           {}, {"parallel.zero=1"}, {"parallel.zero=2"}, {"parallel.zero=3"}, {"parallel.pipeline=2"}})
    expect_enough(with(mode), told(mode));
  expect_too_little(with({}), told({}));
}

TEST_P(ProcessMemory, StateInFilesIsWithinTenth) {
  const Settings mode =
      with({"parallel.zero=3", "offload.optimizer=files", "offload.parameters=files", "offload.part_mib=2"});
  expect_enough(mode, modes_told(mode).at(0));
}

TEST_P(ProcessMemory, SavingRunIsWithinTenth) {
  const Settings mode = with({"checkpoint.every_steps=10"});
  expect_enough(mode, modes_told(mode).at(0));
}

INSTANTIATE_TEST_SUITE_P(Over, ProcessMemory, testing::Values("shm", "gloo"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace trireme::test
