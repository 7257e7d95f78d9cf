// Elastic jobs. A rank is killed and the other processes keep running. The run ends with the same bits as a
// run with the same worlds and no failure.

#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <regex>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trained_run.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using testing::AnyOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

using Words = std::vector<std::string>;

/// 512 steps of a few milliseconds each.
class Elastic : public testing::Test {
 protected:
  Words command(const std::string& name, int ranks, const Words& options, const Words& settings) const {
    Words words = {bin("trireme"), "train", checkout("examples/quick.toml"), "-n", text(ranks)};
    words.insert(words.end(), options.begin(), options.end());
    Words all = {text("run.folder=", folder_.path().string()),
                 text("run.name=", name),
                 "run.log_every_steps=5",
                 "train.epochs=8",
                 "model.hidden=[512,256]",
                 "train.accumulation=1",
                 "checkpoint.every_steps=0",
                 "eval.every_steps=50",
                 "comm.timeout_s=20"};
    all.insert(all.end(), settings.begin(), settings.end());
    for (const std::string& setting : all) words.insert(words.end(), {"--set", setting});
    return words;
  }

  /// Kills one process after an evaluation. Processes are numbered in the order of their start.
  static void kill_after(ChildProcess& launcher, int step, std::size_t process) {
    ASSERT_TRUE(launcher.wait_for_output(text("step ", step, "  test accuracy"), 90));
    const auto pids = launcher.children();
    ASSERT_GT(pids.size(), process);
    ASSERT_EQ(::kill(pids[process], SIGKILL), 0);
  }

  TrainedRun undisturbed(int ranks, const Words& settings, const Words& options = {}) {
    const ChildResult quiet = run(command("quiet", ranks, options, settings), {}, 120);
    EXPECT_EQ(quiet.exit_code, 0) << quiet.err;
    return read_run(folder_ / "quiet");
  }

  /// The step from which the next world continues.
  static std::int64_t step_in(const ChildResult& result) {
    std::smatch found;
    const std::string all = result.out + result.err;
    return std::regex_search(all, found, std::regex("from the memory of the ranks at step ([0-9]+)"))
               ? std::stoll(found[1])
               : -1;
  }

  TemporaryFolder folder_;
};

/// The parallel mode, and how often the state is copied to peers.
struct ElasticCase {
  const char* name;
  int ranks;
  Words settings;
  int most_steps_lost = 0;
  int servers = 0;  ///< number of parameter servers

  Words options() const { return servers > 0 ? Words{"--servers", text(servers)} : Words(); }
  /// Number of processes that the launcher starts before the ranks: the coordinator and the servers.
  std::size_t others() const { return servers > 0 ? static_cast<std::size_t>(servers) + 1 : 0; }
};

std::ostream& operator<<(std::ostream& out, const ElasticCase& shown) { return out << shown.name; }

class ElasticOf : public Elastic, public testing::WithParamInterface<ElasticCase> {};

TEST_P(ElasticOf, ReplacementRestoresStateFromOtherRanks) {
  const ElasticCase& given = GetParam();
  Words options = given.options();
  const TrainedRun expected = undisturbed(given.ranks, given.settings, options);

  options.insert(options.end(), {"--elastic", "--max-restarts", "2"});
  ChildProcess launcher(command("disturbed", given.ranks, options, given.settings));
  kill_after(launcher, 100, given.others() + 1);
  kill_after(launcher, 250, given.others());  // the rank that writes metrics
  const ChildResult result = launcher.wait(120);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.err, HasSubstr("elastic: world 1 has"));
  EXPECT_THAT(result.err, HasSubstr("elastic: world 2 has"));
  EXPECT_THAT(result.err, HasSubstr("rank 1 is a new process"));
  EXPECT_THAT(result.err, HasSubstr("rank 0 is a new process"));
  EXPECT_GE(step_in(result), 100 - given.most_steps_lost) << result.out;

  const TrainedRun found = read_run(folder_ / "disturbed");
  EXPECT_EQ(found.status, "completed");
  EXPECT_EQ(found.steps, expected.steps);
  EXPECT_EQ(found.weights_xxh3, expected.weights_xxh3);
  EXPECT_EQ(found.logged_steps, expected.logged_steps) << "each line of metrics once";
  EXPECT_EQ(found.losses, expected.losses);
}

INSTANTIATE_TEST_SUITE_P(
    Table, ElasticOf,
    testing::Values(
        ElasticCase{"Replicas", 2, {}}, ElasticCase{"Convolutions", 2, {"model.name=cnn", "train.epochs=5"}},
        ElasticCase{"Shards", 3, {"parallel.zero=3", "checkpoint.in_memory_every_steps=1"}},
        ElasticCase{"ShardedOptimizer", 2, {"parallel.zero=1", "checkpoint.in_memory_every_steps=7"}, 7},
        ElasticCase{"Pipeline",
                    2,
                    {"parallel.pipeline=2", "parallel.microbatches=4", "checkpoint.in_memory_every_steps=1"}},
        ElasticCase{"Tensor", 2, {"parallel.tensor=2", "checkpoint.in_memory_every_steps=1"}},
        ElasticCase{.name = "Servers",
                    .ranks = 3,
                    .settings = {"parallel.mode=ps", "checkpoint.in_memory_every_steps=1"},
                    .servers = 2}),
    [](const auto& param) { return std::string(param.param.name); });

TEST_F(Elastic, SmallerWorldEndsWithBitsOfResume) {
  ChildProcess launcher(command("disturbed", 3, {"--elastic", "--min-ranks", "2"}, {}));
  kill_after(launcher, 100, 0);
  const ChildResult result = launcher.wait(120);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.err, HasSubstr("elastic: world 1 has 2 rank(s): rank 1 continues as rank 0"));
  const std::int64_t step = step_in(result);
  ASSERT_GE(step, 100);

  // The same run as two starts, with a checkpoint of that step between them.
  const ChildResult first =
      run(command("quiet", 3, {}, {text("checkpoint.every_steps=", step), "checkpoint.keep=99"}), {}, 120);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "quiet/checkpoints")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && std::stoll(name.substr(5)) != step)
      std::filesystem::remove_all(entry.path());
  }
  std::filesystem::remove(folder_ / "quiet/summary.json");
  const ChildResult second = run(command("quiet", 2, {"--resume"}, {}), {}, 120);
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.out, HasSubstr(text("steps ", step + 1, " to 512"))) << second.out;

  const TrainedRun expected = read_run(folder_ / "quiet"), found = read_run(folder_ / "disturbed");
  EXPECT_EQ(found.world_size, 2);
  EXPECT_EQ(found.weights_xxh3, expected.weights_xxh3);
}

TEST_F(Elastic, TheNextWorldIsPlannedAgain) {
  ChildProcess launcher(
      command("disturbed", 3, {"--elastic", "--min-ranks", "2"},
              {"parallel.plan=auto", "checkpoint.in_memory_every_steps=1"}));  // the plan may choose sharding
  kill_after(launcher, 100, 1);
  const ChildResult result = launcher.wait(120);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, ContainsRegex("plan: [^\n]*estimate(.|\n)*plan: [^\n]*estimate"))
      << "one in each world";
  EXPECT_GE(step_in(result), 100);
  EXPECT_EQ(read_run(folder_ / "disturbed").world_size, 2);
}

TEST_F(Elastic, SpareReplacesRankWithoutNewProcess) {
  const TrainedRun expected = undisturbed(2, {});
  ChildProcess launcher(command("disturbed", 2, {"--elastic", "--spares", "1"}, {}));
  kill_after(launcher, 100, 1);
  const ChildResult result = launcher.wait(120);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_GE(step_in(result), 100);
  EXPECT_EQ(read_run(folder_ / "disturbed").weights_xxh3, expected.weights_xxh3);
}

TEST_F(Elastic, SpareTakesPlaceInPipeline) {
  const Words pipeline = {"parallel.pipeline=2", "parallel.microbatches=4",
                          "checkpoint.in_memory_every_steps=1"};
  const TrainedRun expected = undisturbed(4, pipeline);
  ChildProcess launcher(command("disturbed", 4, {"--elastic", "--spares", "1"}, pipeline));
  kill_after(launcher, 100, 2);
  const ChildResult result = launcher.wait(120);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.err, HasSubstr("elastic: world 1 has 4 rank(s)"));
  EXPECT_EQ(read_run(folder_ / "disturbed").weights_xxh3, expected.weights_xxh3);
}

TEST_F(Elastic, NewWorldHasCopiesBeforeFirstStep) {
  const Words settings = {"parallel.zero=3", "checkpoint.in_memory_every_steps=99"};
  const TrainedRun expected = undisturbed(2, settings);
  ChildProcess launcher(command("disturbed", 2, {"--elastic", "--max-restarts", "2"}, settings));
  kill_after(launcher, 100, 1);
  kill_after(launcher, 150, 0);  // the other rank, which had both copies
  const ChildResult result = launcher.wait(120);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out + result.err,
              ContainsRegex("memory of the ranks at step 99(.|\n)*memory of the ranks at step 99"));
  EXPECT_EQ(read_run(folder_ / "disturbed").weights_xxh3, expected.weights_xxh3);
}

TEST_F(Elastic, WorldsHaveSizesThatTheConfigurationAllows) {
  ChildProcess launcher(
      command("disturbed", 4, {"--elastic", "--min-ranks", "1"},
              {"parallel.pipeline=2", "parallel.microbatches=4", "checkpoint.in_memory_every_steps=1"}));
  kill_after(launcher, 100, 3);
  const ChildResult result = launcher.wait(120);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.err, HasSubstr("elastic: world 1 has 2 rank(s)"));
  EXPECT_EQ(read_run(folder_ / "disturbed").status, "completed");
}

TEST_F(Elastic, LeftOverProcessNeedsNoNewProcess) {
  ChildProcess launcher(
      command("disturbed", 4, {"--elastic", "--min-ranks", "2"},
              {"parallel.pipeline=2", "parallel.microbatches=4", "checkpoint.in_memory_every_steps=1"}));
  kill_after(launcher, 100, 3);
  kill_after(launcher, 250, 0);
  const ChildResult result = launcher.wait(120);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.err, HasSubstr("elastic: world 2 has 2 rank(s)"));
  EXPECT_EQ(read_run(folder_ / "disturbed").status, "completed");
}

TEST_F(Elastic, JobEndsBelowMinimumOfRanks) {
  ChildProcess launcher(command("disturbed", 2, {"--elastic"}, {}));
  kill_after(launcher, 100, 1);
  const ChildResult result = launcher.wait(60);
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_THAT(result.err, HasSubstr("no world can be formed of them (--min-ranks 2)"));
  EXPECT_THAT(result.err, HasSubstr("was killed by SIGKILL"));
}

TEST_F(Elastic, StoppedRankIsReplacedAfterPeerTimeout) {
  const TrainedRun expected = undisturbed(2, {});
  ChildProcess launcher(command("disturbed", 2, {"--elastic", "--max-restarts", "1"}, {"comm.timeout_s=3"}));
  ASSERT_TRUE(launcher.wait_for_output("step 100  test accuracy", 90));
  ASSERT_EQ(::kill(launcher.children()[1], SIGSTOP), 0);
  const ChildResult result = launcher.wait(120);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.err, HasSubstr("does not come to the next world: it is frozen"));
  EXPECT_EQ(read_run(folder_ / "disturbed").weights_xxh3, expected.weights_xxh3);
}

TEST_F(Elastic, RanksThatAreAllFrozenAreReplaced) {
  const TrainedRun expected = undisturbed(2, {});
  ChildProcess launcher(command("disturbed", 2, {"--elastic", "--max-restarts", "2"},
                                {"comm.timeout_s=3", "checkpoint.every_steps=40"}));
  ASSERT_TRUE(launcher.wait_for_output("step 100  test accuracy", 90));
  for (const int pid : launcher.children()) ASSERT_EQ(::kill(pid, SIGSTOP), 0);
  const ChildResult result = launcher.wait(120);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("no rank of this launcher runs: ending it"),
                                HasSubstr("elastic: world 1 has 2 rank(s)")));
  EXPECT_EQ(read_run(folder_ / "disturbed").weights_xxh3, expected.weights_xxh3);
}

TEST_F(Elastic, DivergenceEndsTheJobAtOnce) {
  const ChildResult result =
      run(command("wrong", 2, {"--elastic", "--max-restarts", "3"}, {"optimizer.lr=1e30"}), {}, 60);
  EXPECT_EQ(result.exit_code, 5) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("elastic: world")));
}

TEST_F(Elastic, CountsNewProcessesAndRestartsTogether) {
  const ChildResult result =
      run(command("wrong", 2, {"--elastic", "--max-restarts", "2"}, {"model.weights=/nowhere/x.safetensors"}),
          {}, 60);
  EXPECT_EQ(result.exit_code, 4) << result.err;
  EXPECT_THAT(result.err, HasSubstr("elastic: world 2 has"));
  EXPECT_THAT(result.err, Not(HasSubstr("elastic: world 3 has")));
  EXPECT_THAT(result.err, Not(HasSubstr("starting all")));
}

TEST_F(Elastic, ASignalStopsAllRanksAndSpares) {
  ChildProcess launcher(command("stopped", 2, {"--elastic", "--spares", "1"}, {"train.epochs=2000"}));
  ASSERT_TRUE(launcher.wait_for_output("step 100  test accuracy", 90));
  launcher.send_signal(SIGTERM);
  const ChildResult result = launcher.wait(60);
  EXPECT_EQ(result.exit_code, 143) << result.err;
  EXPECT_EQ(read_run(folder_ / "stopped").status, "interrupted");
}

/// Launches a rank program as an elastic job.
ChildResult launch_loop(const Words& options, const std::string& what) {
  Words words = {bin("trireme"), "launch", "-n", "3", "--elastic"};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"--", bin("rank_elastic_loop"), what});
  return run(words, {}, 60);
}

TEST(ElasticLoop, ProgramIsCalledAgainInNextWorld) {
  const ChildResult replaced = launch_loop({"--max-restarts", "1"}, "kill");
  ASSERT_EQ(replaced.exit_code, 0) << replaced.err;
  EXPECT_THAT(replaced.out, HasSubstr("generation 1: rank 0 of 3, world 2 of this process, sum 6"));
  EXPECT_THAT(replaced.out, HasSubstr("generation 1: rank 1 of 3, world 1 of this process, sum 6"));
  const ChildResult fewer = launch_loop({"--min-ranks", "1"}, "kill");
  ASSERT_EQ(fewer.exit_code, 0) << fewer.err;
  EXPECT_THAT(fewer.out, HasSubstr("generation 1: rank 1 of 2, world 2 of this process, sum 3"));
}

TEST(ElasticLoop, CountsLostWorldsWithoutFailedProcess) {
  const ChildResult result = launch_loop({"--max-restarts", "2"}, "lose");
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_THAT(result.err, HasSubstr("elastic: world 2 has 3"));
  EXPECT_THAT(result.err, Not(HasSubstr("elastic: world 3 has")));
  EXPECT_THAT(result.err,
              HasSubstr("no rank has ended, and the ranks have lost their world: this world is lost"));
  EXPECT_THAT(result.err, HasSubstr("no restart is left (--max-restarts 2)"));
}

TEST(ElasticLoop, CustomLoopResumesOnFewerRanks) {
  const TemporaryFolder folder;
  const auto weights_of = [](const ChildResult& result) {
    const auto at = result.out.find("weights ");
    EXPECT_NE(at, std::string::npos) << result.out << result.err;
    return std::stod(result.out.substr(at + 8));
  };
  const auto command = [&](const std::string& name, int ranks) {
    return Words{bin("trireme"),
                 "launch",
                 "-n",
                 text(ranks),
                 "--no-prefix",
                 "--elastic",
                 "--min-ranks",
                 "1",
                 "--",
                 bin("example_own_loop_elastic"),
                 (folder.path() / name).string(),
                 "3000"};
  };
  const ChildResult quiet = run(command("quiet", 2), {}, 60);
  ASSERT_EQ(quiet.exit_code, 0) << quiet.err;
  ChildProcess launcher(command("disturbed", 3));
  ASSERT_TRUE(launcher.wait_for_output("saved step 150", 60));
  ASSERT_EQ(::kill(launcher.children().at(1), SIGKILL), 0);
  const ChildResult result = launcher.wait(60);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, ContainsRegex("2 ranks begin after step [1-9]"));
  EXPECT_NEAR(weights_of(result), weights_of(quiet), 0.001);
}

/// Workers with bounded staleness. The values on the servers are the state, so no copy is needed.
class ElasticWorkers : public Elastic, public testing::WithParamInterface<int> {};

TEST_P(ElasticWorkers, ContinueWithTheValuesOfTheServers) {
  const Words settings = {"parallel.mode=ps", text("ps.staleness=", GetParam())};
  for (const Words& left : {Words{"--max-restarts", "1"}, Words{"--min-ranks", "2"}}) {
    Words options = {"--elastic", "--servers", "1"};
    options.insert(options.end(), left.begin(), left.end());
    ChildProcess launcher(command("workers", 3, options, settings));
    kill_after(launcher, 100, 3);
    const ChildResult result = launcher.wait(120);
    ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
    EXPECT_GE(step_in(result), 100) << result.out;
    const TrainedRun found = read_run(folder_ / "workers");
    EXPECT_EQ(found.status, "completed");
    EXPECT_EQ(found.steps, 512);
    EXPECT_LT(found.losses.back(), found.losses.front() / 4) << "the weights were not lost";
  }
}

INSTANTIATE_TEST_SUITE_P(Staleness, ElasticWorkers, testing::Values(2, -1), [](const auto& param) {
  return param.param < 0 ? "Unbounded" : text("Of", param.param);
});

TEST_F(Elastic, WrongNumbersOfHostsAreRejected) {
  for (const auto& [given, told] :
       std::vector<std::pair<std::string, std::string>>{{"3:2", "expected MIN:MAX with MIN from 1 to MAX"},
                                                        {"0:2", "expected a number of hosts"},
                                                        {"two", "expected a number of hosts"},
                                                        {"1:", "expected a number of hosts"},
                                                        {"1:2:3", "expected a number of hosts"}}) {
    const ChildResult result =
        run({bin("trireme"), "launch", "-n", "2", "--elastic", "--nnodes", given, "--", "true"}, {}, 20);
    EXPECT_EQ(result.exit_code, 2) << given;
    EXPECT_THAT(result.err, HasSubstr(told)) << given;
  }
  const ChildResult fixed =
      run({bin("trireme"), "launch", "-n", "2", "--nnodes", "1:2", "--", "true"}, {}, 20);
  EXPECT_EQ(fixed.exit_code, 2);
  EXPECT_THAT(fixed.err, HasSubstr("add --elastic"));
}

TEST_F(Elastic, OptionsOfOtherJobsAreRejected) {
  const ChildResult result =
      run({bin("trireme"), "launch", "-n", "2", "--spares", "1", "--", "true"}, {}, 20);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("add --elastic"));
}

}  // namespace
}  // namespace trireme::test
