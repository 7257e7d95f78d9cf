#include <gmock/gmock.h>

#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>

#include "tests/support/child_process.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// `trireme train` on a small configuration, in a folder of its own.
class TrainCommand : public testing::Test {
 protected:
  std::vector<std::string> command(const std::string& name, int ranks,
                                   const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {
        bin("trireme"),        "train", TRIREME_SOURCE_DIR "/examples/quick.toml", "-n",
        std::to_string(ranks), "--set", "run.folder=" + folder_.path().string(),   "--set",
        "run.name=" + name};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  nlohmann::json summary(const std::string& name) const {
    return nlohmann::json::parse(read_file(folder_.path() / name / "summary.json"));
  }

  std::vector<double> losses(const std::string& name) const {
    std::vector<double> result;
    for (const std::string& line : split(read_file(folder_.path() / name / "metrics.jsonl"), '\n')) {
      const auto record = nlohmann::json::parse(line, nullptr, false);
      if (record.is_object() && record["event"] == "step") result.push_back(record["loss"].get<double>());
    }
    return result;
  }

  TemporaryFolder folder_;
};

TEST_F(TrainCommand, TwoProcessesLeaveTheFilesAndTheNumbersOfOne) {
  const std::vector<std::string> few = {"--set", "train.max_steps=20", "--set", "run.log_every_steps=1"};
  for (const int ranks : {1, 2}) {
    const ChildResult result = run(command(std::to_string(ranks), ranks, few), {}, 60);
    ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
    EXPECT_THAT(result.out, HasSubstr("step 20/20"));
  }
  EXPECT_EQ(summary("2")["world_size"], 2);
  EXPECT_EQ(summary("2")["steps"], 20);
  EXPECT_EQ(summary("2")["status"], "completed");
  const std::vector<double> one = losses("1"), two = losses("2");
  ASSERT_EQ(one.size(), 20u);
  ASSERT_EQ(two.size(), 20u);
  // The summing order differs; twenty steps of a small network stay far below this.
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(two[i], one[i], 1e-4 * std::abs(one[i]));
}

TEST_F(TrainCommand, BadConfigurationIsAUsageErrorBeforeAnyRankStarts) {
  const ChildResult result = run(command("bad", 2, {"--set", "optimizer.lrr=1"}), {}, 30);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("unknown key 'optimizer.lrr' (did you mean 'optimizer.lr'?)"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "bad"));
}

TEST_F(TrainCommand, AModelThatCannotTakeTheDataIsAUsageErrorBeforeAnyRankStarts) {
  const ChildResult result = run(command("bad", 2, {"--set", "model.name=gpt"}), {}, 30);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("\"gpt\""), HasSubstr("\"synthetic\""), Not(HasSubstr("[0]"))));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "bad"));
}

TEST_F(TrainCommand, DivergenceHasItsOwnExitCodeAndNamesTheStep) {
  const ChildResult result = run(command("wild", 2, {"--set", "optimizer.lr=1e30"}), {}, 60);
  EXPECT_EQ(result.exit_code, 5) << result.err;
  EXPECT_THAT(result.err, HasSubstr("is not a finite number on rank"));
}

TEST_F(TrainCommand, TerminationStopsAllRanksAtAStepAndResumeGoesOn) {
  const std::vector<std::string> lengthy = {"--set", "train.epochs=1000000", "--set",
                                            "run.log_every_steps=1"};
  ChildProcess child(command("stopped", 2, lengthy));
  ASSERT_TRUE(child.wait_for_output("test accuracy", 60));
  child.send_signal(SIGTERM);
  const ChildResult result = child.wait(30);
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.out << result.err;
  ASSERT_EQ(summary("stopped")["status"], "interrupted");
  const int steps = summary("stopped")["steps"];
  const ChildResult resumed = run(
      command("stopped", 2,
              {"--resume", "--set", "train.epochs=1000000", "--set", text("train.max_steps=", steps + 5)}),
      {}, 60);
  EXPECT_EQ(resumed.exit_code, 0) << resumed.out << resumed.err;
  EXPECT_EQ(summary("stopped")["steps"], steps + 5);
}

}  // namespace
}  // namespace trireme::test
