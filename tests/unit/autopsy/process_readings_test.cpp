// Real processes, whose state is read as the launcher reads its ranks.
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
#include <fstream>
#include <functional>
#include <future>
#include <thread>

#include "tests/support/silent_file_system.h"
#include "tests/support/temporary_folder.h"
#include "trireme/autopsy/kernel_log.h"
#include "trireme/base/clock.h"
#include "trireme/base/text.h"

namespace trireme::autopsy {
namespace {

/// A child process, which ends with the object.
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

  /// The evidence of the process, once `ready` is true for it.
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

/// The evidence of a process that waits for a file server in `body`. Fails if the reader waits, too.
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

TEST(ProcessReadings, DoNotWaitForSilentFileServer) {
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

TEST(ProcessReadings, DoNotWaitForFileServerMemory) {
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

TEST(ProcessReadings, NameTheControlGroupThatIsFrozen) {
  const std::filesystem::path group = text("/sys/fs/cgroup/freezer/trireme-test-", ::getpid());
  std::error_code error;
  if (!std::filesystem::create_directory(group, error))
    GTEST_SKIP() << "no control group can be made here (needs root and a freezer of version 1)";
  {
    const Process process([] { ::pause(); });
    std::ofstream(group / "cgroup.procs") << process.pid() << std::flush;
    std::ofstream(group / "freezer.state") << "FROZEN" << std::flush;
    const RankEvidence rank = process.evidence_when([](const RankEvidence& each) { return each.freezer; });
    std::ofstream(group / "freezer.state") << "THAWED" << std::flush;
    EXPECT_EQ(rank.group, group);
  }
  EXPECT_TRUE(std::filesystem::remove(group, error)) << error.message();
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

TEST(ProcessReadings, AreEmptyForEndedProcess) {
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

TEST(ProcessReadings, GiveRateOfRankWithManyBytes) {
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

/// The control-group files of a kernel, in a folder of the test.
class MemoryGroups : public testing::Test {
 protected:
  static constexpr int kPid = 4711;
  void write(const std::string& path, const std::string& content) {
    std::filesystem::create_directories((root_.path() / path).parent_path());
    std::ofstream(root_.path() / path) << content;
  }
  /// A group of version 2: its limit, its own events, and those including the groups below it.
  void write_group(const std::string& path, const std::string& limit, int own_oom, int oom, int kills) {
    const std::string folder = "sys/fs/cgroup" + path;
    write(folder + "/memory.max", limit + "\n");
    write(folder + "/memory.events.local", text("low 0\noom ", own_oom, "\noom_kill 0\n"));
    write(folder + "/memory.events", text("low 0\noom ", oom, "\noom_kill ", kills, "\n"));
  }
  RankEvidence evidence(const std::vector<MemoryGroup>& before) const {
    RankEvidence rank;
    describe_memory(rank, before, read_again(before));
    return rank;
  }
  std::vector<MemoryGroup> read() const { return read_memory_groups(kPid, root_.path()); }
  const test::TemporaryFolder root_;
};

TEST_F(MemoryGroups, CountNoHostKillAsLimitKill) {
  write("proc/4711/cgroup", "0::/job/rank\n");
  write_group("/job/rank", "1048576", 0, 0, 3);
  write_group("/job", "max", 0, 0, 3);
  const auto before = read();
  ASSERT_EQ(before.size(), 2U);
  write_group("/job/rank", "1048576", 0, 0, 4);
  write_group("/job", "max", 0, 0, 4);
  const RankEvidence rank = evidence(before);
  EXPECT_TRUE(rank.kills_counted);
  EXPECT_EQ(rank.oom_kills, 1);
  EXPECT_EQ(rank.group_oom_kills, 0);
  EXPECT_EQ(rank.group_limit_bytes, 1048576U);
}

TEST_F(MemoryGroups, NameTheGroupThatReachedItsLimit) {
  write("proc/4711/cgroup", "0::/job/rank\n");
  write_group("/job/rank", "1048576", 0, 0, 0);
  write_group("/job", "2097152", 0, 0, 0);
  const auto before = read();
  write_group("/job/rank", "1048576", 0, 0, 1);
  write_group("/job", "2097152", 2, 2, 1);
  const RankEvidence rank = evidence(before);
  EXPECT_EQ(rank.group_oom_kills, 1);
  EXPECT_EQ(rank.group, root_ / "sys/fs/cgroup/job");
  EXPECT_EQ(rank.group_limit_bytes, 2097152U);
}

TEST_F(MemoryGroups, FirstVersionCountsItsLimits) {
  write("proc/4711/cgroup", "5:memory:/job\n0::/\n");
  const std::string folder = "sys/fs/cgroup/memory/job/";
  write(folder + "memory.limit_in_bytes", "1048576\n");
  write(folder + "memory.failcnt", "7\n");
  write(folder + "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n");
  const auto before = read();
  ASSERT_EQ(before.size(), 1U);
  write(folder + "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
  EXPECT_EQ(evidence(before).group_oom_kills, 0);
  EXPECT_EQ(evidence(before).oom_kills, 1);
  write(folder + "memory.failcnt", "9\n");
  EXPECT_EQ(evidence(before).group_oom_kills, 1);
  std::filesystem::remove_all(root_ / folder);
  EXPECT_FALSE(evidence(before).kills_counted) << "the group is gone";
}

TEST_F(MemoryGroups, OfAContainerAreAtTheMount) {
  write("proc/4711/cgroup", "0::/docker/abc\n");
  write_group("", "1048576", 0, 0, 0);
  const auto groups = read();
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].limit_bytes, 1048576U);
}

TEST(KernelLog, NamesGroupOfProcessKilledForMemory) {
  const std::string log =
      "6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/job_1,"
      "task_memcg=/job_1/a,task=train,pid=4711,uid=0\n"
      "6,2,3,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
      "task_memcg=/,task=train,pid=12,uid=0\n";
  ASSERT_TRUE(find_memory_kill(log, 4711));
  EXPECT_TRUE(find_memory_kill(log, 4711)->by_limit);
  EXPECT_EQ(find_memory_kill(log, 4711)->group, "/job_1");
  ASSERT_TRUE(find_memory_kill(log, 12));
  EXPECT_FALSE(find_memory_kill(log, 12)->by_limit);
  EXPECT_FALSE(find_memory_kill(log, 471));
  EXPECT_FALSE(find_memory_kill("", 1));
}

TEST(KernelLog, NamesProcessesThatAreKilledTogether) {
  const std::string log =
      "6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/job_1,"
      "task_memcg=/job_1,task=train,pid=4711,uid=0\n"
      "3,2,3,-;Memory cgroup out of memory: Killed process 4711 (train) total-vm:1kB\n"
      "3,3,4,-;Memory cgroup out of memory: Killed process 4712 (train) total-vm:1kB\n"
      "3,4,5,-;Out of memory: Killed process 12 (train) total-vm:1kB\n";
  EXPECT_EQ(find_memory_kill(log, 4711)->group, "/job_1");
  ASSERT_TRUE(find_memory_kill(log, 4712));
  EXPECT_TRUE(find_memory_kill(log, 4712)->by_limit);
  ASSERT_TRUE(find_memory_kill(log, 12));
  EXPECT_FALSE(find_memory_kill(log, 12)->by_limit);
  EXPECT_FALSE(find_memory_kill(log, 1));
}

TEST(KernelLog, IgnoresEarlierProcessesOfSameNumber) {
  if (::access("/dev/kmsg", W_OK) != 0) GTEST_SKIP() << "the log of the kernel may not be written here";
  const int pid = 99'999'999;  // no process has this id
  const auto write = [&](const std::string& record) {
    std::ofstream("/dev/kmsg") << record << ": Out of memory: Killed process " << pid << " (trireme test)\n"
                               << std::flush;
  };
  write("a test of an earlier time");
  MemoryKillLog log;
  const auto before = log.read();
  if (!before) GTEST_SKIP() << "the log of the kernel may not be read here";
  EXPECT_FALSE(find_memory_kill(*before, pid));
  write("a test");
  EXPECT_TRUE(find_memory_kill(*log.read(), pid));
}

}  // namespace
}  // namespace trireme::autopsy
