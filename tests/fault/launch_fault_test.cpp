// Ranks that are killed, stopped, missing or throwing, and a launcher that is killed. Each gives the right
// error and the right rank in bounded time, and leaves nothing behind.

#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>

#include "tests/support/child_process.h"
#include "tests/support/ports.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/clock.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr double kLaunchTimeout_s = 3;
// Two timeouts, and a margin for a loaded machine to start and end processes.
constexpr double kLaunchBound_s = 2 * kLaunchTimeout_s + 10;

std::set<std::string> shared_memory_files() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const auto name = entry.path().filename().string();
    if (entry.is_regular_file() && name.find("trireme") != std::string::npos) names.insert(name);
  }
  return names;
}

bool is_gone(int pid) {
  const auto deadline = Deadline::after_s(5);
  while (::kill(pid, 0) == 0) {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

/// `ranks` ranks that have already run some reductions in a loop.
class RunningWorld {
 public:
  explicit RunningWorld(int ranks, const std::vector<std::string>& more = {})
      : before_(shared_memory_files()), launcher_(command(ranks, more)) {
    // Waits for all ranks. A rank that still has to print would be ended by the closed pipe of the launcher.
    started_ = true;
    for (int rank = 0; rank < ranks; ++rank) {
      started_ = started_ && launcher_.wait_for_output(text("[", rank, "] step 20"), 60);
    }
    pids_ = launcher_.children();
    started_ = started_ && static_cast<int>(pids_.size()) == ranks;
  }

  bool started() const { return started_; }
  ChildProcess& launcher() { return launcher_; }
  /// Ranks are started in order, so their process ids are listed in that order.
  int pid_of(int rank) const { return pids_.at(static_cast<std::size_t>(rank)); }

  ChildResult end() {
    const auto result = launcher_.wait(kLaunchBound_s);
    EXPECT_FALSE(result.timed_out) << result.err;
    for (const int pid : pids_) {
      if (is_gone(pid)) continue;
      ADD_FAILURE() << "process " << pid << " is still there";
      ::kill(pid, SIGKILL);
    }
    EXPECT_EQ(shared_memory_files(), before_);
    return result;
  }

 private:
  static std::vector<std::string> command(int ranks, const std::vector<std::string>& more) {
    std::vector<std::string> words = {
        bin("trireme"),         "launch", "-n", text(ranks), "--", bin("rank_fault_loop"),
        text(kLaunchTimeout_s), "60"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  std::set<std::string> before_;
  ChildProcess launcher_;
  std::vector<int> pids_;
  bool started_ = false;
};

TEST(KilledRank, IsNamedWithItsLastOperation) {
  RunningWorld world(4);
  ASSERT_TRUE(world.started());
  ::kill(world.pid_of(2), SIGKILL);
  const auto result = world.end();
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, AllOf(HasSubstr(text("rank 2 (pid ", world.pid_of(2), ") was killed by SIGKILL")),
                                HasSubstr("rank 2: was in: step"), HasSubstr("last operation: all_reduce")))
      << result.err;
}

TEST(FrozenRank, IsNamedAndEnded) {
  for (const int victim : {0, 1}) {
    SCOPED_TRACE(victim);
    RunningWorld world(2);
    ASSERT_TRUE(world.started());
    ::kill(world.pid_of(victim), SIGSTOP);
    const auto result = world.end();
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err, HasSubstr(text("rank ", victim, " (pid "))) << result.err;
    EXPECT_THAT(result.err, HasSubstr("was frozen by SIGSTOP; the others gave up"));
    EXPECT_THAT(result.err, testing::ContainsRegex(text("\\[", 1 - victim, "\\] error: .*rank ", victim)))
        << "the survivor names it too";
  }
}

// No rank waits for the stopped rank any more, so no timeout of another rank reports it.
TEST(FrozenRank, IsEndedWhenAllOthersHaveEnded) {
  const auto result = run({bin("trireme"), "launch", "-n", "2", "--frozen-grace", "1", "--", "/bin/sh", "-c",
                           "if [ $RANK = 1 ]; then kill -STOP $$; fi"},
                          {}, kLaunchBound_s);
  EXPECT_FALSE(result.timed_out) << result.err;
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_GE(result.wall_s, 1) << "it may be let go on until then";
  EXPECT_THAT(result.err, AllOf(HasSubstr("rank 1 (pid "), HasSubstr("has been frozen for "),
                                HasSubstr("was frozen by SIGSTOP when all others had ended")));
}

TEST(FrozenRank, IsEndedWithoutRunningLocalRank) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    const auto result = run({bin("trireme"), "launch", "-n", text(ranks), "--frozen-grace", "1", "--",
                             "/bin/sh", "-c", "kill -STOP $$; exec sleep 60"},
                            {}, kLaunchBound_s);
    EXPECT_FALSE(result.timed_out) << result.err;
    EXPECT_EQ(result.exit_code, 3) << result.err;
    EXPECT_THAT(
        result.err,
        AllOf(HasSubstr("all ranks of this launcher are frozen: rank 0 (pid "), HasSubstr("kill -CONT "),
              HasSubstr("--frozen-grace"), HasSubstr(text("rank ", ranks - 1, " (pid ")),
              HasSubstr("was frozen by SIGSTOP, and no rank of this launcher was running")));
  }
}

TEST(FrozenRank, StillTakesSignalThatEndsIt) {
  const auto result = run({bin("trireme"), "launch", "-n", "1", "--frozen-grace", "1", "--", "/bin/sh", "-c",
                           "trap 'echo took it; exit 0' TERM; kill -STOP $$"},
                          {}, kLaunchBound_s);
  EXPECT_FALSE(result.timed_out) << result.err;
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_THAT(result.out, HasSubstr("[0] took it")) << result.err;
}

/// Two ranks that stop themselves, and print one word after they are continued.
class FrozenWorld {
 public:
  explicit FrozenWorld(const std::string& grace_s)
      : launcher_({bin("trireme"), "launch", "-n", "2", "--frozen-grace", grace_s, "--", "/bin/sh", "-c",
                   "kill -STOP $$; echo awake"}) {}

  ChildProcess& launcher() { return launcher_; }
  bool froze() { return launcher_.wait_for_output("all ranks of this launcher are frozen", 60); }
  void let_go_on() {
    for (const int pid : launcher_.children()) ::kill(pid, SIGCONT);
  }

 private:
  ChildProcess launcher_;
};

TEST(FrozenRank, IsAwaitedWithoutLimitOnRequest) {
  FrozenWorld world("0");
  ASSERT_TRUE(world.froze());
  EXPECT_FALSE(world.launcher().wait_for_output("awake", 3));
  world.let_go_on();
  const auto result = world.launcher().wait(kLaunchBound_s);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("[0] awake"), HasSubstr("[1] awake")));
}

/// Both are stopped for longer than comm.timeout_s, and the one that waits for the other continues first.
TEST(FrozenRank, CountsItsPauseAgainstNoOther) {
  ChildProcess launcher({bin("trireme"), "launch", "-n", "2", "--", bin("rank_fault_loop"), "3", "8"});
  ASSERT_TRUE(launcher.wait_for_output("[1] step 20", 60));
  const auto ranks = launcher.children();
  ASSERT_EQ(ranks.size(), 2U);
  const auto pause = [](int milliseconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  };
  ::kill(ranks[1], SIGSTOP);
  pause(200);
  ::kill(ranks[0], SIGSTOP);
  pause(4000);
  ::kill(ranks[0], SIGCONT);
  pause(1000);
  ::kill(ranks[1], SIGCONT);
  const ChildResult result = launcher.wait(kLaunchBound_s);
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(FrozenRank, OutlivesTimeInWhichLauncherIsFrozen) {
  FrozenWorld world("4");
  ASSERT_TRUE(world.froze());
  world.launcher().send_signal(SIGSTOP);
  std::this_thread::sleep_for(std::chrono::seconds(5));
  world.launcher().send_signal(SIGCONT);
  std::this_thread::sleep_for(std::chrono::seconds(1));  // the launcher checks its ranks in this time
  world.let_go_on();
  const auto result = world.launcher().wait(kLaunchBound_s);
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

char state_of(int pid) {
  std::ifstream file(text("/proc/", pid, "/stat"));
  const std::string line{std::istreambuf_iterator<char>(file), {}};
  return line.substr(line.find(')') + 1, 2).back();
}

bool comes_to_stand_still(int pid) {
  const auto deadline = Deadline::after_s(30);
  while (state_of(pid) != 'T') {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

// The ranks start no programs. A shell that is stopped between vfork and exec is not reported as stopped.
TEST(CtrlZ, StopsRanksWithLauncherAndContinuesAll) {
  const TemporaryFolder folder;
  const std::string open = (folder / "open").string();
  ChildProcess launcher({bin("trireme"), "launch", "-n", "2", "--frozen-grace", "1", "--", "/bin/sh", "-c",
                         "echo here; until [ -e \"$0\" ]; do :; done; echo through", open});
  for (const char* line : {"[0] here", "[1] here"}) ASSERT_TRUE(launcher.wait_for_output(line, 60));
  for (int time = 0; time < 2; ++time) {
    const auto ranks = launcher.children();
    ASSERT_EQ(ranks.size(), 2u);
    launcher.send_signal(SIGTSTP);
    for (const int pid : {ranks[0], ranks[1], launcher.pid()}) ASSERT_TRUE(comes_to_stand_still(pid)) << pid;
    launcher.send_signal(SIGCONT);
    ASSERT_TRUE(launcher.wait_for_output("rank 1 continues", 30));
  }
  std::ofstream(open) << "yes";
  const auto result = launcher.wait(kLaunchBound_s);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("[0] through"), HasSubstr("[1] through")));
}

TEST(ThrowingRank, DecidesTheExitCode) {
  RunningWorld world(2, {"throw"});
  const auto result = world.launcher().wait(kLaunchBound_s + 30);
  EXPECT_EQ(result.exit_code, 4) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("[1] error: the file is damaged"), HasSubstr("error: rank 1"),
                                HasSubstr("exited with code 4")));
}

TEST(KilledLauncher, LeavesNoOrphans) {
  RunningWorld world(3);
  ASSERT_TRUE(world.started());
  world.launcher().send_signal(SIGKILL);
  EXPECT_EQ(world.end().signal, SIGKILL);
}

TEST(CtrlC, EndsTheLauncherAndAllRanksWith130) {
  RunningWorld world(2);
  ASSERT_TRUE(world.started());
  world.launcher().send_signal(SIGINT);
  const auto result = world.end();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_THAT(result.err, HasSubstr("SIGINT"));
}

TEST(MissingRank, IsNamedByTheDeadline) {
  // A world of two hosts, one of which is never started.
  const auto result = run({bin("trireme"), "launch", "-n", "1", "--nnodes", "2", "--master-addr", "127.0.0.1",
                           "--master-port", text(free_port()), "--", bin("rank_fault_loop"), "2", "60"},
                          {}, kLaunchBound_s + 10);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, testing::ContainsRegex("rank(s)? 1 .*(arrive|missing)"));
}

TEST(TakenPort, ErrorNamesAddressInUse) {
  const TakenPort port;
  const auto result = run({bin("trireme"), "launch", "-n", "2", "--master-port", text(port.number()), "--",
                           bin("rank_fault_loop"), "2", "60"},
                          {}, kLaunchBound_s + 10);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("Address already in use"));
}

}  // namespace
}  // namespace trireme::test
