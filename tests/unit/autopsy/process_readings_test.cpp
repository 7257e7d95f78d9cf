// Real processes, read as the launcher reads its ranks.
#include "trireme/autopsy/process_readings.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <functional>
#include <future>
#include <thread>

#include "tests/support/silent_file_system.h"
#include "tests/support/temporary_folder.h"
#include "trireme/autopsy/kernel_log.h"
#include "trireme/base/clock.h"

namespace trireme::autopsy {
namespace {

/// A process of the test's own, which ends with it.
class Process {
 public:
  explicit Process(const std::function<void()>& body) : pid_(::fork()) {
    if (pid_ != 0) return;
    body();
    ::_exit(0);
  }
  ~Process() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  int pid() const { return pid_; }

  /// Its evidence, once `ready` holds of it.
  template <class Ready>
  RankEvidence evidence_when(const Ready& ready) const {
    RankEvidence rank;
    for (const auto deadline = Deadline::after_s(20); !deadline.expired();) {
      const ProcessReadings before = read_process(pid_);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      rank = {};
      rank.pid = pid_;
      describe_process(rank, before, read_process(pid_));
      if (ready(rank)) return rank;
    }
    ADD_FAILURE() << "not seen within 20 s";
    return rank;
  }

 private:
  const pid_t pid_;
};

TEST(ProcessReadings, NameThePipeThatAThreadReads) {
  const test::TemporaryFolder folder;
  const std::string path = (folder / "words").string();
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const int held = ::open(path.c_str(), O_RDWR);
  const Process process([&] {
    char word = 0;
    [[maybe_unused]] const auto got = ::read(::open(path.c_str(), O_RDONLY), &word, 1);
  });
  const RankEvidence rank = process.evidence_when(
      [](const RankEvidence& each) { return !each.blocked.empty() && each.blocked[0].call == "read"; });
  ::close(held);
  ASSERT_FALSE(rank.blocked.empty());
  EXPECT_EQ(rank.blocked[0].kind, "pipe");
  EXPECT_EQ(rank.blocked[0].target, path);
  EXPECT_TRUE(rank.blocked[0].first);
}

TEST(ProcessReadings, NameTheFileThatAThreadLocks) {
  const test::TemporaryFolder folder;
  const std::string path = (folder / "state").string();
  const int held = ::open(path.c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_EQ(::flock(held, LOCK_EX), 0);
  const Process process([&] { ::flock(::open(path.c_str(), O_RDONLY), LOCK_EX); });
  const RankEvidence rank = process.evidence_when(
      [](const RankEvidence& each) { return !each.blocked.empty() && each.blocked[0].call == "flock"; });
  ::close(held);
  ASSERT_FALSE(rank.blocked.empty());
  EXPECT_EQ(rank.blocked[0].kind, "file");
  EXPECT_EQ(rank.blocked[0].target, path);
}

/// The evidence of a process that waits for a file server in `body`; fails where the reader waits, too.
RankEvidence evidence_without_a_wait(test::SilentFileSystem& disk, const std::function<void(int)>& body) {
  const Process process([&] { body(::open(disk.file().c_str(), O_RDONLY)); });
  for (const auto deadline = Deadline::after_s(20); !disk.is_silent() && !deadline.expired();)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(disk.is_silent());
  auto reading = std::async(std::launch::async, [&] {
    return process.evidence_when([](const RankEvidence& each) { return !each.blocked.empty(); });
  });
  const bool is_read = reading.wait_for(std::chrono::seconds(40)) == std::future_status::ready;
  disk.end();
  EXPECT_TRUE(is_read) << "it waited for the server, too";
  const RankEvidence rank = reading.get();
  EXPECT_FALSE(rank.blocked.empty());
  return rank;
}

TEST(ProcessReadings, DoNotWaitForAFileServerThatDoesNotAnswer) {
  const test::TemporaryFolder folder;
  test::SilentFileSystem disk(folder.path());
  if (!disk.there()) GTEST_SKIP() << "no file system of FUSE can be mounted here";
  const std::string path = disk.file().string();
  const RankEvidence rank = evidence_without_a_wait(disk, [](int file) {
    std::array<char, 16> bytes{};
    [[maybe_unused]] const auto got = ::read(file, bytes.data(), bytes.size());
  });
  ASSERT_FALSE(rank.blocked.empty());
  EXPECT_EQ(rank.blocked[0].call, "read");
  EXPECT_EQ(rank.blocked[0].kind, "file");
  EXPECT_EQ(rank.blocked[0].target, path);
}

TEST(ProcessReadings, DoNotWaitForMemoryOfAFileServerThatDoesNotAnswer) {
  const test::TemporaryFolder folder;
  test::SilentFileSystem disk(folder.path());
  if (!disk.there()) GTEST_SKIP() << "no file system of FUSE can be mounted here";
  const RankEvidence rank = evidence_without_a_wait(disk, [](int file) {
    ::open(static_cast<const char*>(::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, file, 0)), O_RDONLY);
  });
  ASSERT_FALSE(rank.blocked.empty());
  EXPECT_EQ(rank.blocked[0].call, "openat");
}

TEST(ProcessReadings, ShowAStoppedProcess) {
  const Process process([] { ::pause(); });
  ::kill(process.pid(), SIGSTOP);
  EXPECT_EQ(process.evidence_when([](const RankEvidence& each) { return each.state == "T"; }).state, "T");
}

TEST(ProcessReadings, ShowAProcessThatComputes) {
  const Process process([] {
    for (volatile bool go_on = true; go_on;) {
    }
  });
  const RankEvidence rank =
      process.evidence_when([](const RankEvidence& each) { return each.busy + each.waits_for_core > 0.5; });
  EXPECT_EQ(rank.state, "R");
  EXPECT_TRUE(is_ready_to_run(process.pid()));
}

TEST(ProcessReadings, AreEmptyOfAProcessThatIsGone) {
  const int pid = [] {
    const Process process([] {});
    return process.pid();
  }();
  EXPECT_EQ(read_process(pid).at_s, 0);
  EXPECT_FALSE(is_ready_to_run(pid));
  RankEvidence rank;
  rank.pid = pid;
  describe_process(rank, {}, read_process(pid));
  EXPECT_EQ(rank.state, "");
}

TEST(ProcessReadings, GiveTheRateOfARankThatReadsManyBytes) {
  ProcessReadings before, now;
  before.at_s = 1;
  now.at_s = 3;
  before.bytes = 1'000'000;
  now.bytes = 8'001'000'000;
  RankEvidence rank;
  rank.pid = ::getpid();
  describe_process(rank, before, now);
  EXPECT_EQ(rank.bytes_per_s, 4e9);
}

TEST(KernelLog, NamesTheGroupOfAProcessThatWasKilledForMemory) {
  const std::string log =
      "6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/job_1,"
      "task_memcg=/job_1/a,task=train,pid=4711,uid=0\n"
      "6,2,3,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
      "task_memcg=/,task=train,pid=12,uid=0\n";
  ASSERT_TRUE(find_memory_kill(log, 4711));
  EXPECT_EQ(find_memory_kill(log, 4711)->group, "/job_1");
  ASSERT_TRUE(find_memory_kill(log, 12));
  EXPECT_EQ(find_memory_kill(log, 12)->group, "");
  EXPECT_FALSE(find_memory_kill(log, 471));
  EXPECT_FALSE(find_memory_kill("", 1));
}

}  // namespace
}  // namespace trireme::autopsy
