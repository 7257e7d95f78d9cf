// The disk of a run's folder does not answer. The launcher prints its verdict and ends.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "bench/autopsy/disturbances.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/clock.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using testing::HasSubstr;

/// Processes that the launcher leaves behind become children of this process.
class DeadDisk : public testing::Test {
 protected:
  DeadDisk() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }
  ~DeadDisk() override {
    for (const int pid : own_children()) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }

  static std::vector<int> own_children() {
    std::ifstream file(text("/proc/self/task/", ::getpid(), "/children"));
    std::vector<int> result;
    for (int child = 0; file >> child;) result.push_back(child);
    return result;
  }

  void start(const std::string& folder, const std::map<std::string, std::string>& environment = {}) {
    launcher_ = std::make_unique<ChildProcess>(
        std::vector<std::string>{bin("trireme"), "launch", "-n", "1", "--autopsy", folder, "--", "/bin/sh",
                                 "-c", "echo begun; exec sleep 1000"},
        environment);
    ASSERT_TRUE(launcher_->wait_for_output("begun", 60));
  }

  /// Whether the launcher ends in time, without waiting for a process that cannot be killed.
  bool ends_within(double seconds) const {
    siginfo_t info{};
    for (const auto deadline = Deadline::after_s(seconds); !deadline.expired();) {
      const auto pid = static_cast<id_t>(launcher_->pid());
      if (::waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }
  void expect_verdict() {
    const ChildResult end = launcher_->wait(60);
    EXPECT_EQ(end.exit_code, 128 + SIGTERM);
    EXPECT_THAT(end.err, HasSubstr("autopsy: the run was stopped: the launcher received SIGTERM"));
  }

  const TemporaryFolder folder_;
  std::unique_ptr<ChildProcess> launcher_;
};

TEST_F(DeadDisk, DoesNotDelayLauncherToldToStop) {
  start(folder_.path().string(), {{"LD_PRELOAD", bin("slow_fsync.so")}, {"TRIREME_TEST_FSYNC_S", "300"}});
  launcher_->send_signal(SIGTERM);
  ASSERT_TRUE(ends_within(60));
  expect_verdict();
  EXPECT_FALSE(std::filesystem::exists(folder_ / "autopsy.json")) << "the disk has answered";
  EXPECT_EQ(own_children().size(), 1U) << "the process that waits for the disk is left behind";
}

TEST_F(DeadDisk, KeepsNoUnkillableProcessOfLauncher) {
  if (::geteuid() != 0 || ::unshare(CLONE_NEWNS) != 0 ||
      std::system("mount --make-rprivate / 2>/dev/null") != 0)
    GTEST_SKIP() << "mounting a file system needs root";
  bench::FreezableDisk disk(folder_.path());
  if (!disk.there()) GTEST_SKIP() << "no loop device can be mounted here";
  start(disk.path());
  disk.freeze();
  launcher_->send_signal(SIGTERM);
  EXPECT_TRUE(ends_within(60));
  disk.thaw();
  expect_verdict();
  const std::filesystem::path file = std::filesystem::path(disk.path()) / "autopsy.json";
  for (const int pid : own_children()) ::waitpid(pid, nullptr, 0);
  EXPECT_TRUE(std::filesystem::exists(file)) << "it is written as soon as the disk answers";
}

}  // namespace
}  // namespace trireme::test
