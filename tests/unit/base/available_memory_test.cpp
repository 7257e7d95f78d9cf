#include "trireme/base/available_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

constexpr std::uint64_t kMib = 1 << 20;

/// The files of a kernel, in a folder of the test.
class AvailableMemoryTest : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& content) {
    std::filesystem::create_directories((root_.path() / path).parent_path());
    std::ofstream(root_.path() / path) << content;
  }
  /// A group of version 2 in which `files` and `unwritten` are parts of `used`.
  void write_group(const std::string& folder, const std::string& limit, std::uint64_t used,
                   std::uint64_t files = 0, std::uint64_t unwritten = 0) {
    write(folder + "/memory.max", limit + "\n");
    write(folder + "/memory.current", std::to_string(used) + "\n");
    write(folder + "/memory.stat",
          "anon " + std::to_string(used - files) + "\nfile " + std::to_string(files + 7 * kMib) + "\nshmem " +
              std::to_string(7 * kMib) + "\nfile_dirty " + std::to_string(unwritten) +
              "\nfile_writeback 0\ninactive_file " + std::to_string(files / 2) + "\nactive_file " +
              std::to_string(files - files / 2) + "\n");
  }
  AvailableMemory read() const { return available_memory(root_.path()); }
  test::TemporaryFolder root_;
};

TEST_F(AvailableMemoryTest, IsThatOfHostWithoutGroupLimit) {
  write("proc/meminfo", "MemTotal:  4194304 kB\nMemFree:  10 kB\nMemAvailable:  1048576 kB\n");
  write("proc/self/cgroup", "0::/user.slice\n");
  write_group("sys/fs/cgroup/user.slice", "max", 100 * kMib);
  EXPECT_EQ(read().bytes, 1024 * kMib);
  EXPECT_FALSE(read().group_limit_bytes.has_value());
}

TEST_F(AvailableMemoryTest, ReportsMemoryOfProcessItself) {
  write("proc/self/status", "Name:\tt\nVmRSS:\t  900 kB\nRssAnon:\t   512 kB\nRssFile:\t 300 kB\n");
  EXPECT_EQ(anonymous_memory(root_.path()), 512U << 10);
  EXPECT_EQ(anonymous_memory(root_ / "nowhere"), 0U);
}

TEST(AnonymousMemory, GrowsWithWrittenPages) {
  constexpr std::size_t kBytes = 32 << 20;
  const std::uint64_t before = anonymous_memory();
  std::vector<char> used(kBytes, 'x');
  EXPECT_GE(anonymous_memory(), before + kBytes - kMib);
  EXPECT_LT(anonymous_memory(), before + kBytes + 4 * kMib) << used[kBytes / 2];
}

TEST_F(AvailableMemoryTest, CountsPageCacheOfContainerAsFree) {
  write("proc/self/cgroup", "0::/\n");
  write_group("sys/fs/cgroup", std::to_string(1000 * kMib), 1000 * kMib, /*files=*/860 * kMib);
  EXPECT_EQ(read().bytes, 860 * kMib);
  EXPECT_EQ(read().group_limit_bytes, 1000 * kMib);
}

TEST_F(AvailableMemoryTest, ExcludesSharedMemoryAndUnwrittenPages) {
  write("proc/self/cgroup", "0::/\n");
  write_group("sys/fs/cgroup", std::to_string(1000 * kMib), 1000 * kMib, /*files=*/500 * kMib,
              /*unwritten=*/200 * kMib);
  EXPECT_EQ(read().bytes, 300 * kMib);
}

TEST_F(AvailableMemoryTest, IsRestOfNarrowestGroupAboveProcess) {
  write("proc/self/cgroup", "0::/jobs/mine\n");
  write_group("sys/fs/cgroup/jobs/mine", std::to_string(900 * kMib), 100 * kMib);
  write_group("sys/fs/cgroup/jobs", std::to_string(1000 * kMib), 950 * kMib);
  EXPECT_EQ(read().bytes, 50 * kMib);
  EXPECT_EQ(read().group_limit_bytes, 900 * kMib);
}

TEST_F(AvailableMemoryTest, FindsContainerUnderPathOfHost) {
  for (const char* path : {"/docker/abc", "/../../docker/abc"}) {
    write("proc/self/cgroup", std::string("0::") + path + "\n");
    write_group("sys/fs/cgroup", std::to_string(1000 * kMib), 300 * kMib);
    EXPECT_EQ(read().bytes, 700 * kMib) << path;
  }
}

TEST_F(AvailableMemoryTest, ReadsGroupsOfFirstVersion) {
  write("proc/self/cgroup", "12:cpu,cpuacct:/job\n5:memory:/job\n0::/job\n");
  const std::string folder = "sys/fs/cgroup/memory/job";
  write(folder + "/memory.limit_in_bytes", std::to_string(1000 * kMib) + "\n");
  write(folder + "/memory.usage_in_bytes", std::to_string(990 * kMib) + "\n");
  write(folder + "/memory.stat",
        "cache 1\ninactive_file 1\nactive_file 1\ntotal_cache 1\ntotal_dirty " + std::to_string(10 * kMib) +
            "\ntotal_writeback " + std::to_string(20 * kMib) + "\ntotal_inactive_file " +
            std::to_string(300 * kMib) + "\ntotal_active_file " + std::to_string(400 * kMib) + "\n");
  EXPECT_EQ(read().bytes, (1000 - 990 + 700 - 30) * kMib);
}

TEST_F(AvailableMemoryTest, IsUnlimitedWhereNothingIsKnown) {
  EXPECT_EQ(read().bytes, std::numeric_limits<std::uint64_t>::max());
}

TEST_F(AvailableMemoryTest, IsZeroInGroupOverItsLimit) {
  write("proc/self/cgroup", "0::/\n");
  write_group("sys/fs/cgroup", std::to_string(100 * kMib), 300 * kMib, /*files=*/50 * kMib);
  EXPECT_EQ(read().bytes, 0U);
}

TEST(AvailableMemory, OfThisMachineIsAtLeastSomething) { EXPECT_GT(available_memory().bytes, kMib); }

}  // namespace
}  // namespace trireme
