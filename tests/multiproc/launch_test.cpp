// `trireme launch` with shell commands as ranks, and other launchers with our rank program.

#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/ports.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trained_run.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

ChildResult launch(const std::vector<std::string>& options, const std::string& script,
                   const std::map<std::string, std::string>& environment = {}) {
  std::vector<std::string> command = {bin("trireme"), "launch"};
  command.insert(command.end(), options.begin(), options.end());
  command.insert(command.end(), {"--", "bash", "-c", script});
  return run(command, environment, 30);
}

TEST(Launch, GivesEachRankItsPlace) {
  const auto result = launch({"-n", "2"},
                             "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR "
                             "${OMP_NUM_THREADS:+threads} $TRIREME_RESTART_COUNT",
                             {{"OMP_NUM_THREADS", ""}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("[0] 0 2 0 2 127.0.0.1 threads 0\n"));
  EXPECT_THAT(result.out, HasSubstr("[1] 1 2 1 2 127.0.0.1 threads 0\n"));
}

TEST(Launch, DrawsBarOfRankZeroInPlace) {
  const TemporaryFolder folder;
  // `script` gives the command a terminal of its own.
  const std::string command =
      text(bin("trireme"), " train ", checkout("examples/quick.toml -n 2 --set run.folder="),
           folder.path().string());
  const auto result = run({"script", "-qec", command, "/dev/null"}, {{"TERM", "xterm"}}, 60);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("\r\x1b[K[0] [="));
  EXPECT_THAT(result.out, HasSubstr("\r\x1b[K[0] step 128  test accuracy"));
  EXPECT_THAT(result.out, Not(HasSubstr("[1]")));
}

TEST(Launch, NumbersSecondHostsRanksAfterFirstHosts) {
  const auto result = launch({"-n", "2", "--nnodes", "3", "--node-rank", "1", "--master-addr", "127.0.0.1",
                              "--master-port", "29999"},
                             "echo $RANK $WORLD_SIZE $LOCAL_RANK $TRIREME_STORE $MASTER_PORT");
  EXPECT_THAT(result.out, HasSubstr("[2] 2 6 0 127.0.0.1:29999 30000\n"));
  EXPECT_THAT(result.out, HasSubstr("[3] 3 6 1 127.0.0.1:29999 30000\n"));
}

TEST(Launch, ServesStoreUnderSecretOfJob) {
  const std::string script =
      "echo secret ${#TRIREME_SECRET}; (echo > /dev/tcp/${TRIREME_STORE/:/\\/}) && echo served";
  const auto result = launch({"-n", "2"}, script);
  EXPECT_THAT(result.out, AllOf(HasSubstr("[0] secret 64\n"), HasSubstr("[1] secret 64\n"),
                                HasSubstr("[0] served\n"), HasSubstr("[1] served\n")))
      << result.err;
  EXPECT_NE(launch({"-n", "1"}, "echo $TRIREME_SECRET").out, launch({"-n", "1"}, "echo $TRIREME_SECRET").out);
}

TEST(Launch, TakesSecretFromFileOrEnvironment) {
  const TemporaryFolder folder;
  const auto file = folder / "secret";
  std::ofstream(file) << "a-secret-of-the-job-1\n";
  std::filesystem::permissions(file, std::filesystem::perms(0600));
  const std::string script = "echo $TRIREME_SECRET ${TRIREME_SECRET_FILE:-none}";
  const std::string expected = "[0] a-secret-of-the-job-1 none\n";
  EXPECT_EQ(launch({"-n", "1", "--secret-file", file.string()}, script).out, expected);
  EXPECT_EQ(launch({"-n", "1"}, script, {{"TRIREME_SECRET_FILE", file.string()}}).out, expected);
  EXPECT_EQ(launch({"-n", "1"}, script, {{"TRIREME_SECRET", "a-secret-of-the-job-1"}}).out, expected);
}

TEST(Launch, BothSidesNameHolderOfAnotherSecret) {
  const auto result = run({bin("trireme"), "launch", "-n", "1", "--nnodes", "2", "--master-addr", "127.0.0.1",
                           "--master-port", text(free_port()), "--", "bash", "-c",
                           "TRIREME_SECRET=not-the-one-of-this-job " + bin("rank_launch_sum")},
                          {{"TRIREME_SECRET", "the-secret-of-this-job"}}, 60);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, AllOf(HasSubstr("[0] error: rank 0 of 2 could not join the rendezvous"),
                                HasSubstr("rejects this process"),
                                ContainsRegex("trireme launch: the store at [^\n]*127.0.0.1:[0-9]*: it has "
                                              "another secret")));
}

TEST(Launch, LeavesPortToProgramThatServesRendezvous) {
  const auto result = launch({"-n", "1"},
                             "python3 -c 'import os, socket; s = socket.socket(); "
                             "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); "
                             "s.bind((\"127.0.0.1\", int(os.environ[\"MASTER_PORT\"]))); s.listen(); "
                             "print(\"served\")'");
  EXPECT_EQ(result.out, "[0] served\n") << result.err;
}

TEST(Launch, SeparatesStreamsAndEndsLastLine) {
  const auto result = launch({"-n", "1"}, "echo out; echo err >&2; printf unfinished");
  EXPECT_EQ(result.out, "[0] out\n[0] unfinished\n");
  EXPECT_EQ(result.err, "[0] err\n");
}

TEST(Launch, ContinuesWithoutReaderOfRankOutput) {
  const TemporaryFolder folder;
  const std::string done = folder / "done";
  const auto result =
      run({"bash", "-c",
           text("set -o pipefail; ", bin("trireme"), " launch -n 1 -- bash -c 'echo first; sleep 0.5; ",
                "for i in 1 2 3; do echo more; sleep 0.1; done; touch ", done, "' | head -n 1")},
          {}, 30);
  EXPECT_EQ(result.out, "[0] first\n");
  EXPECT_EQ(result.exit_code, 0) << "the run's own end, not a signal: " << result.err;
  EXPECT_TRUE(std::filesystem::exists(done));
}

TEST(Launch, GivesItsRanksTheUsualSignals) {
  // A writer to a closed pipe ends, as in every shell.
  const auto result = launch({"-n", "1", "--no-prefix"}, "yes | head -n 1; echo ${PIPESTATUS[0]}");
  EXPECT_EQ(result.out, "y\n141\n") << result.err;
}

TEST(Launch, CanLeaveOutThePrefix) {
  EXPECT_EQ(launch({"-n", "1", "--no-prefix"}, "echo plain").out, "plain\n");
}

TEST(Launch, PassesExitCodeAndStopsOtherRanks) {
  const auto result = launch({"-n", "2"}, "[ $RANK = 1 ] && exit 4; exec sleep 60");
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, AllOf(HasSubstr("rank 1"), HasSubstr("exited with code 4"),
                                HasSubstr("rank 0: stopped by the launcher")));
}

TEST(Launch, KillsARankThatDoesNotStop) {
  const auto result = launch({"-n", "2", "--stop-grace", "0.3"},
                             "trap '' TERM; [ $RANK = 1 ] && exit 5; while true; do sleep 0.1; done");
  EXPECT_EQ(result.exit_code, 5) << result.err;
}

TEST(Launch, RestartsAllRanksAsOftenAsAllowed) {
  const auto result = launch({"-n", "2", "--max-restarts", "2"},
                             "echo attempt $TRIREME_RESTART_COUNT; [ $TRIREME_RESTART_COUNT = 2 ] || exit 4");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("[1] attempt 0"), HasSubstr("[1] attempt 2")));
  EXPECT_THAT(result.err, HasSubstr("restart 2 of 2"));
}

TEST(Launch, DoesNotRestartAfterUsageError) {
  const auto result = launch({"-n", "1", "--max-restarts", "2"}, "exit 2");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, Not(HasSubstr("again")));
}

TEST(Launch, ForwardsCtrlCToAllRanks) {
  ChildProcess launcher(
      {bin("trireme"), "launch", "-n", "2", "--", "bash", "-c",
       "trap 'echo saved $RANK; exit 130' INT; echo ready; while true; do sleep 0.05; done"});
  ASSERT_TRUE(launcher.wait_for_output("[0] ready", 20));
  ASSERT_TRUE(launcher.wait_for_output("[1] ready", 20));
  launcher.send_signal(SIGINT);
  const auto result = launcher.wait(20);
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_THAT(result.out, AllOf(HasSubstr("[0] saved 0"), HasSubstr("[1] saved 1")));
}

TEST(Launch, ASecondCtrlCKills) {
  ChildProcess launcher({bin("trireme"), "launch", "-n", "1", "--", "bash", "-c",
                         "trap 'echo not now' INT; echo ready; while true; do sleep 0.05; done"});
  ASSERT_TRUE(launcher.wait_for_output("[0] ready", 20));
  launcher.send_signal(SIGINT);
  ASSERT_TRUE(launcher.wait_for_output("not now", 20));
  launcher.send_signal(SIGINT);
  EXPECT_EQ(launcher.wait(20).exit_code, 130);
}

TEST(Launch, LocalServersAreReachedThroughSharedMemory) {
  const auto result = launch({"-n", "1", "--servers", "1"},
                             "until " + bin("trireme") +
                                 " ps status $TRIREME_PS_COORDINATOR | grep server0; do sleep 0.05; done; "
                                 "echo coordinator at $TRIREME_PS_COORDINATOR");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, ContainsRegex("server0 +place0 +unix:@trireme-[^ ]*-server0 +up"));
  EXPECT_THAT(result.out, ContainsRegex("coordinator at unix:@trireme-[^ ]*-coordinator\n"));
}

TEST(Launch, RejectsMissingProgramAndInvalidOptions) {
  const TemporaryFolder folder;
  const auto refused = [](const std::vector<std::string>& words, const std::string& why) {
    std::vector<std::string> command = {bin("trireme"), "launch"};
    command.insert(command.end(), words.begin(), words.end());
    const auto result = run(command);
    EXPECT_EQ(result.exit_code, 2) << why;
    EXPECT_THAT(result.err, HasSubstr(why));
  };
  refused({"-n", "2"}, "there is no program to launch");
  refused({"-n", "0", "--", "true"}, "it goes from 1 to 4096");
  refused({"-n", "2147483647", "--", "true"}, "it goes from 1 to 4096");
  refused({"-n", "1", "--servers", "-1", "--", "true"}, "--servers is -1; it goes from 0 to 4096");
  refused({"-n", "1", "--", "no-such-program"}, "there is no program 'no-such-program' in PATH");
  refused({"-n", "1", "--", "/no/such"}, "there is no program /no/such");
  refused({"-n", "1", "--", folder.path().string()}, "is a folder");
  refused({"-n", "1", "--", checkout("CMakeLists.txt")}, "not executable");
  refused({"-n", "1", "--nnodes", "2", "--", "true"}, "--master-addr");
  refused({"-n", "1", "--nnodes", "2", "--node-rank", "2", "--", "true"}, "--node-rank");
  refused({"-n", "1", "--nnodes", "2", "--node-rank", "1", "--master-addr", "192.0.2.1", "--master-port",
           "29500", "--", "true"},
          "--secret-file");
  refused({"-n", "1", "--secret-file", "/no/such", "--", "true"}, "/no/such");
  refused({"-n", "1", "--max-restart", "2", "--", "true"}, "did you mean '--max-restarts'?");
}

void expect_sums(const ChildResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("rank 0 of 2: sum 3"), HasSubstr("rank 1 of 2: sum 3")));
}

std::string find_in_path(const std::string& name) {
  for (const auto& folder : split(std::getenv("PATH"), ':')) {
    const auto path = std::filesystem::path(folder) / name;
    if (std::filesystem::exists(path)) return path.string();
  }
  return "";
}

TEST(Launchers, OurOwnStartsARankProgram) {
  expect_sums(run({bin("trireme"), "launch", "-n", "2", "--", bin("rank_launch_sum")}));
}

TEST(Launchers, MpirunStartsARankProgram) {
  const auto mpirun = find_in_path("mpirun");
  if (mpirun.empty()) GTEST_SKIP() << "no mpirun in PATH";
  expect_sums(run({mpirun, "-n", "2", "--allow-run-as-root", "--oversubscribe", bin("rank_launch_sum")}));
}

/// Ranks under torchrun: TRIREME_TORCHRUN, the one next to TRIREME_PYTHON, or the one in PATH.
class Torchrun : public testing::Test {
 protected:
  void SetUp() override {
    const char* chosen = std::getenv("TRIREME_TORCHRUN");
    const char* python = std::getenv("TRIREME_PYTHON");
    torchrun_ = chosen != nullptr   ? std::string(chosen)
                : python != nullptr ? std::filesystem::path(python).replace_filename("torchrun").string()
                                    : find_in_path("torchrun");
    if (torchrun_.empty())
      GTEST_SKIP() << "no torchrun in PATH, beside TRIREME_PYTHON nor in TRIREME_TORCHRUN";
    if (run({torchrun_, "--help"}).exit_code != 0) GTEST_SKIP() << torchrun_ << " does not run";
  }

  std::vector<std::string> two_ranks(std::vector<std::string> program) const {
    program.insert(program.begin(), {torchrun_, "--standalone", "--no-python", "--nproc-per-node", "2"});
    return program;
  }

  std::vector<std::string> training(const std::string& epochs) const {
    return two_ranks({bin("trireme"), "train", checkout("examples/quick.toml"), "--set",
                      text("run.folder=", folder_.path().string()), "--set", "comm.torch_threads=1", "--set",
                      text("train.epochs=", epochs)});
  }

  TemporaryFolder folder_;
  std::string torchrun_;
};

TEST_F(Torchrun, StartsARankProgram) { expect_sums(run(two_ranks({bin("rank_launch_sum")}))); }

TEST_F(Torchrun, StartsRanksThatTrainToTheEnd) {
  const auto result = run(training("2"));
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const auto trained = read_run(folder_ / "quick");
  EXPECT_EQ(trained.status, "completed");
  EXPECT_EQ(trained.world_size, 2);
  EXPECT_EQ(trained.steps, 128);
}

TEST_F(Torchrun, NamesKilledRankAndEndsTraining) {
  ChildProcess agent(training("100000"));
  ASSERT_TRUE(agent.wait_for_output("step 100  test accuracy", 120));
  const auto ranks = agent.children();  // in the order of their start
  ASSERT_EQ(ranks.size(), 2u);
  ::kill(ranks[1], SIGKILL);
  const auto result = agent.wait(60);
  EXPECT_FALSE(result.timed_out) << result.out;
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, ContainsRegex(text("exitcode: -9\\) local_rank: 1 \\(pid: ", ranks[1])));
}

}  // namespace
}  // namespace trireme::test
