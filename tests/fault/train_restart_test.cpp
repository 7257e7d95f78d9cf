// Training loses ranks during the run and ends with the same numbers as a run that lost none.

#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <thread>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trained_run.h"
#include "trireme/base/clock.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

constexpr int kRanks = 2;

/// A few seconds of training with a checkpoint every 50 steps. "step N  test accuracy" is printed before the
/// checkpoint of that step is written. So a kill at that moment often interrupts the write.
class TrainRestart : public testing::Test {
 protected:
  std::vector<std::string> command(const std::string& name, int restarts) const {
    std::vector<std::string> words = {bin("trireme"), "train",      checkout("examples/quick.toml"),
                                      "-n",           text(kRanks), "--max-restarts",
                                      text(restarts)};
    for (const std::string& setting :
         {text("run.folder=", folder_.path().string()), text("run.name=", name),
          std::string("run.log_every_steps=5"), std::string("train.epochs=5"),
          std::string("model.hidden=[512,256]"), std::string("comm.timeout_s=20")}) {
      words.insert(words.end(), {"--set", setting});
    }
    return words;
  }

  TemporaryFolder folder_;
};

/// Kills the rank after the step and, on a slow disk, after the previous checkpoint. Returns 0 if the run
/// does not get there.
int kill_rank_at(ChildProcess& launcher, const std::filesystem::path& checkpoints, int step,
                 std::size_t rank) {
  if (!launcher.wait_for_output(text("step ", step, "  test accuracy"), 60)) return 0;
  std::ostringstream before;
  before << "step-" << std::setw(8) << std::setfill('0') << step - 50;
  const Deadline deadline = Deadline::after_s(60);
  while (!std::filesystem::exists(checkpoints / before.str())) {
    if (deadline.expired()) return 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const auto pids = launcher.children();  // in the order in which the ranks were started
  if (pids.size() != kRanks || ::kill(pids[rank], SIGKILL) != 0) return 0;
  return pids[rank];
}

/// The parallel mode of the two ranks.
struct Sharing {
  const char* name;
  std::vector<std::string> settings;
};

std::ostream& operator<<(std::ostream& out, const Sharing& sharing) { return out << sharing.name; }

class TrainRestartOf : public TrainRestart, public testing::WithParamInterface<Sharing> {
 protected:
  std::vector<std::string> shared(const std::string& name, int restarts) const {
    std::vector<std::string> words = command(name, restarts);
    for (const std::string& setting : GetParam().settings) words.insert(words.end(), {"--set", setting});
    return words;
  }
};

TEST_P(TrainRestartOf, EndsWithBitsOfUninterruptedRun) {
  const ChildResult quiet = run(shared("quiet", 0), {}, 90);
  ASSERT_EQ(quiet.exit_code, 0) << quiet.err;

  ChildProcess launcher(shared("disturbed", 2));
  const std::filesystem::path checkpoints = folder_ / "disturbed/checkpoints";
  const int first = kill_rank_at(launcher, checkpoints, 100, 1);
  const int second = kill_rank_at(launcher, checkpoints, 200, 0);  // the rank that also writes metrics
  const ChildResult result = launcher.wait(90);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.err, HasSubstr(text("rank 1 (pid ", first, ") was killed by SIGKILL")));
  EXPECT_THAT(result.err, HasSubstr(text("rank 0 (pid ", second, ") was killed by SIGKILL")));
  EXPECT_THAT(result.err, HasSubstr("restart 2 of 2"));
  EXPECT_THAT(result.out, ContainsRegex("resuming mlp on synthetic: steps (51|101|151) to 320"));
  EXPECT_THAT(result.out, ContainsRegex("resuming mlp on synthetic: steps (151|201|251) to 320"));

  const TrainedRun expected = read_run(folder_ / "quiet"), found = read_run(folder_ / "disturbed");
  EXPECT_EQ(found.status, "completed");
  EXPECT_EQ(found.steps, 320);
  EXPECT_EQ(found.weights_xxh3, expected.weights_xxh3);
  EXPECT_EQ(found.logged_steps, expected.logged_steps) << "each line of metrics once";
  EXPECT_EQ(found.losses, expected.losses);
  EXPECT_EQ(found.train_loss, expected.train_loss);
}

INSTANTIATE_TEST_SUITE_P(
    Table, TrainRestartOf,
    testing::Values(Sharing{"Data", {}},
                    Sharing{"Pipeline", {"parallel.pipeline=2", "parallel.microbatches=4"}},
                    Sharing{"PipeDream",
                            {"parallel.pipeline=2", "parallel.schedule=pipedream", "train.accumulation=1"}}),
    [](const auto& param) { return std::string(param.param.name); });

/// The goodput in the summary of a run that was killed and then restarted by the launcher.
nlohmann::json goodput_of(const std::filesystem::path& run) {
  const auto summary = nlohmann::json::parse(read_file(run / "summary.json"));
  double sum = 0;
  for (const char* share : {"goodput", "goodput_data_wait", "goodput_saving", "goodput_evaluation",
                            "goodput_lost", "goodput_starting", "goodput_recovering"})
    sum += summary.at(share).get<double>();
  EXPECT_NEAR(sum, 1, 1e-9);
  return summary;
}

/// Kills a rank after the output of the evaluation of step 800 of 1280.
void kill_late(const std::vector<std::string>& command, std::size_t rank) {
  ChildProcess launcher(command);
  ASSERT_TRUE(launcher.wait_for_output("step 800  test accuracy", 90));
  const auto pids = launcher.children();
  ASSERT_EQ(pids.size(), kRanks);
  ASSERT_EQ(::kill(pids[rank], SIGKILL), 0);
  const ChildResult result = launcher.wait(120);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.err, HasSubstr("restart 1 of 1"));
  EXPECT_THAT(result.out,
              ContainsRegex("goodput [0-9.]+ % of .*lost [0-9.]+ % .[0-9]+ steps.*interruptions: 1"));
}

TEST_F(TrainRestart, ReportsShareOfLostTime) {
  auto words = command("disturbed", 1);
  for (const char* setting : {"train.epochs=20", "checkpoint.every_steps=640", "eval.every_steps=400"})
    words.insert(words.end(), {"--set", setting});
  kill_late(words, 0);  // the rank that measures goodput
  const nlohmann::json found = goodput_of(folder_ / "disturbed");
  EXPECT_EQ(found.at("interruptions"), 1);
  EXPECT_GE(found.at("lost_steps").get<int>(), 155) << "after the checkpoint of step 640";
  EXPECT_LT(found.at("lost_steps").get<int>(), 640);
  for (const char* share : {"goodput", "goodput_lost", "goodput_starting", "goodput_recovering"})
    EXPECT_GT(found.at(share).get<double>(), 0) << share;
}

TEST_F(TrainRestart, LosesAllStepsWithoutACheckpoint) {
  auto words = command("disturbed", 1);
  for (const char* setting : {"train.epochs=20", "checkpoint.every_steps=0", "eval.every_steps=400"})
    words.insert(words.end(), {"--set", setting});
  kill_late(words, 1);
  const nlohmann::json found = goodput_of(folder_ / "disturbed");
  EXPECT_EQ(found.at("interruptions"), 1);
  EXPECT_GE(found.at("lost_steps").get<int>(), 795);
}

// Rank 1 of the first start dies before there is a world. So rank 0 has not yet moved the folder of the
// finished run.
TEST_F(TrainRestart, UnstartedRunKeepsFinishedRun) {
  const auto shortened = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"--set", "train.max_steps=40", "--set", "checkpoint.every_steps=10"});
    return words;
  };
  const ChildResult finished = run(shortened(command("a", 0)), {}, 90);
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  const TrainedRun earlier = read_run(folder_ / "a");

  std::vector<std::string> words = {
      bin("trireme"),
      "launch",
      "-n",
      text(kRanks),
      "--max-restarts",
      "2",
      "--",
      "/bin/sh",
      "-c",
      R"(if [ $RANK = 1 ] && [ $TRIREME_RESTART_COUNT = 0 ]; then kill -9 $$; fi; exec "$0" "$@")",
      bin("trireme-torch"),
      "train",
      checkout("examples/quick.toml")};
  const std::vector<std::string> of_train = shortened(command("a", 0));
  words.insert(words.end(), std::find(of_train.begin(), of_train.end(), "--set"), of_train.end());
  words.insert(words.end(), {"--set", "run.seed=9"});
  const ChildResult result = run(words, {}, 90);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("training mlp on synthetic: steps 1 to 40"));
  EXPECT_EQ(read_run(folder_ / "a.1").weights_xxh3, earlier.weights_xxh3);
  EXPECT_NE(read_run(folder_ / "a").weights_xxh3, earlier.weights_xxh3);
}

// No process is left to save the state: launcher and ranks are killed at once, ten times. Kills hit steps,
// checkpoint writes and the time between. The same command with --resume continues each time.
TEST_F(TrainRestart, TenKillsOfAllRanksKeepBits) {
  const auto often = [&](const std::string& name) {
    auto words = command(name, 0);
    for (const char* setting : {"eval.every_steps=10", "checkpoint.every_steps=10"}) {
      words.insert(words.end(), {"--set", setting});
    }
    return words;
  };
  const ChildResult quiet = run(often("quiet"), {}, 90);
  ASSERT_EQ(quiet.exit_code, 0) << quiet.err;

  std::mt19937 random(1);
  for (int kill = 0; kill < 10; ++kill) {
    auto words = often("killed");
    if (kill > 0) words.push_back("--resume");
    ChildProcess job(words);
    // Later kills hit at any point after that step: each starts 30 steps later, plus up to 10 ms.
    ASSERT_TRUE(job.wait_for_output(text("step ", 20 + 30 * kill, "  test accuracy"), 60)) << kill;
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 10000));
    ASSERT_EQ(::kill(-job.pid(), SIGKILL), 0);
    EXPECT_EQ(job.wait(30).signal, SIGKILL);
  }
  auto words = often("killed");
  words.push_back("--resume");
  const ChildResult last = run(words, {}, 90);
  ASSERT_EQ(last.exit_code, 0) << last.err;
  const TrainedRun expected = read_run(folder_ / "quiet"), found = read_run(folder_ / "killed");
  EXPECT_EQ(found.weights_xxh3, expected.weights_xxh3);
  EXPECT_EQ(found.losses, expected.losses);
  EXPECT_EQ(found.logged_steps, expected.logged_steps);
}

}  // namespace
}  // namespace trireme::test
