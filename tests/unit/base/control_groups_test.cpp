#include "trireme/base/control_groups.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temporary_folder.h"
#include "trireme/base/host.h"
#include "trireme/base/text.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

/// The files of a kernel, in a folder of the test.
class CpuQuota : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& content) {
    fs::create_directories((root_.path() / path).parent_path());
    std::ofstream(root_.path() / path) << content;
  }
  std::optional<double> read() const { return cpu_quota(root_.path()); }
  test::TemporaryFolder root_;
};

TEST_F(CpuQuota, IsNoneWhereNoGroupHasOne) {
  EXPECT_FALSE(read().has_value());
  write("proc/self/cgroup", "2:cpu,cpuacct:/job\n0::/user.slice\n");
  write("sys/fs/cgroup/user.slice/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  EXPECT_FALSE(read().has_value());
}

TEST_F(CpuQuota, ReadsContainerAtMountItself) {
  for (const char* path : {"/", "/docker/abc", "/../../docker/abc"}) {
    write("proc/self/cgroup", text("0::", path, "\n"));
    write("sys/fs/cgroup/cpu.max", "150000 100000\n");
    EXPECT_EQ(read(), 1.5) << path;
  }
}

TEST_F(CpuQuota, IsSmallestOfGroupAndItsParents) {
  write("proc/self/cgroup", "0::/system.slice/job.scope/step\n");
  write("sys/fs/cgroup/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/system.slice/cpu.max", "800000 100000\n");
  write("sys/fs/cgroup/system.slice/job.scope/cpu.max", "100000 50000\n");
  write("sys/fs/cgroup/system.slice/job.scope/step/cpu.max", "400000 100000\n");
  write("sys/fs/cgroup/system.slice/another.scope/cpu.max", "10000 100000\n");
  EXPECT_EQ(read(), 2);
}

TEST_F(CpuQuota, ReadsGroupsOfFirstVersion) {
  for (const std::string folder : {"cpu", "cpu,cpuacct"}) {
    const test::TemporaryFolder root;
    const auto write_below = [&](const std::string& path, const std::string& content) {
      fs::create_directories((root.path() / path).parent_path());
      std::ofstream(root.path() / path) << content;
    };
    write_below("proc/self/cgroup", "12:cpu,cpuacct:/docker/abc\n5:memory:/docker/abc\n");
    write_below("sys/fs/cgroup/" + folder + "/docker/abc/cpu.cfs_quota_us", "300000\n");
    write_below("sys/fs/cgroup/" + folder + "/docker/abc/cpu.cfs_period_us", "100000\n");
    EXPECT_EQ(cpu_quota(root.path()), 3) << folder;
    write_below("sys/fs/cgroup/" + folder + "/docker/cpu.cfs_quota_us", "50000\n");
    write_below("sys/fs/cgroup/" + folder + "/docker/cpu.cfs_period_us", "100000\n");
    EXPECT_EQ(cpu_quota(root.path()), 0.5) << folder;
  }
}

TEST_F(CpuQuota, FindsSecondVersionBesideFirst) {
  write("proc/self/cgroup", "3:memory:/\n0::/job\n");
  write("sys/fs/cgroup/unified/job/cpu.max", "200000 100000\n");
  EXPECT_EQ(read(), 2);
}

/// A real control group with a quota of one core. Empty if none can be created.
fs::path new_group_of_one_core() {
  const std::string name = text("trireme-test-", ::getpid());
  const fs::path mounts = "/sys/fs/cgroup";
  std::error_code error;
  if (const fs::path v1 = mounts / "cpu" / name; fs::create_directory(v1, error)) {
    if (std::ofstream(v1 / "cpu.cfs_quota_us") << 100000 << std::flush) return v1;
    fs::remove(v1, error);
  }
  if (const fs::path v2 = mounts / name;
      fs::exists(mounts / "cgroup.procs", error) && fs::create_directory(v2, error)) {
    if (std::ofstream(v2 / "cpu.max") << "100000 100000" << std::flush) return v2;
    fs::remove(v2, error);
  }
  return {};
}

TEST(Host, AvailableCoresFollowQuotaOfRealGroup) {
  if (available_cores() < 2) GTEST_SKIP() << "a quota of one core changes nothing on one core";
  const fs::path group = new_group_of_one_core();
  if (group.empty()) GTEST_SKIP() << "no control group can be made here (needs root and a writable cgroup)";
  const pid_t child = ::fork();
  if (child == 0) {
    const bool moved = static_cast<bool>(std::ofstream(group / "cgroup.procs") << ::getpid() << std::flush);
    ::_exit(moved ? available_cores() : 100);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  std::error_code error;
  fs::remove(group, error);
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

}  // namespace
}  // namespace trireme
