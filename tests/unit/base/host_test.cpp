#include "trireme/base/host.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace trireme {
namespace {

TEST(Host, CoresFollowTheAffinityMask) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(available_cores(), 1);
  ASSERT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
  EXPECT_GE(available_cores(), 1);
}

TEST(Host, TheProcessorIsNamedWithItsInstructions) {
  EXPECT_GT(processor().model.size(), std::string("  --  ").size());
  EXPECT_NE((" " + processor().instructions + " ").find(" sse2 "), std::string::npos);  // every x86-64 has it
}

TEST(Host, PeakMemoryCountsWrittenPages) {
  const std::uint64_t before = peak_rss_bytes();
  std::vector<char> block(64 << 20, 1);
  EXPECT_GE(peak_rss_bytes(), before / 2 + block.size() / 2);
}

TEST(Host, FreedMemoryIsKeptForNextAllocation) {
  const auto faults = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
  };
  const auto touch = [] { std::vector<char>(40 << 20, 1); };
  if (!keep_freed_memory()) GTEST_SKIP() << "the allocator is not the C library's";
  touch();
  const long before = faults();
  for (int i = 0; i < 10; ++i) touch();
  EXPECT_LT(faults() - before, 10 * (40 << 20) / 4096 / 2)
      << "the pages were given back and faulted in again";
}

TEST(Host, TheEnvironmentsChoiceForTheAllocatorStands) {
  ::setenv("MALLOC_TRIM_THRESHOLD_", "131072", 1);
  EXPECT_FALSE(keep_freed_memory());
  ::unsetenv("MALLOC_TRIM_THRESHOLD_");
}

TEST(Host, AllowedCoresAreAvailableWithoutQuota) {
  const std::vector<int> cores = allowed_cores();
  EXPECT_TRUE(std::is_sorted(cores.begin(), cores.end()));
  EXPECT_GE(static_cast<int>(cores.size()), available_cores());
}

// Launchers bind ranks in several ways: not at all, each to its own cores, or two ranks to a socket.
TEST(Host, CoresAreSharedByAllowedProcesses) {
  const auto share = [](const std::vector<std::vector<int>>& allowed, std::size_t mine) {
    const CoreShare found = share_of_cores(allowed, mine);
    return std::pair(found.cores, found.num_processes);
  };
  const std::vector<int> all{0, 1, 2, 3}, low{0, 1}, high{2, 3};
  EXPECT_EQ(share({all}, 0), std::pair(4.0, 1));
  EXPECT_EQ(share({all, all}, 1), std::pair(2.0, 2));
  EXPECT_EQ(share({low, high}, 0), std::pair(2.0, 1));
  EXPECT_EQ(share({low, high, low, high}, 3), std::pair(1.0, 2));
  EXPECT_EQ(share({all, low}, 0), std::pair(3.0, 2));
  EXPECT_EQ(share({all, low}, 1), std::pair(1.0, 2));
  EXPECT_EQ(share({{}, low}, 0), std::pair(0.0, 0)) << "where the kernel does not say";
}

TEST(Host, TheIdentityCanBeChosen) {
  ::unsetenv("TRIREME_HOST_ID");
  const std::string real = host_id();
  EXPECT_FALSE(real.empty());
  EXPECT_EQ(host_id(), real);
  ::setenv("TRIREME_HOST_ID", "left", 1);
  EXPECT_EQ(host_id(), "left");
  ::setenv("TRIREME_SITE", "berlin/rack3", 1);
  EXPECT_EQ(host_id(), "berlin/rack3/left");
  ::unsetenv("TRIREME_SITE");
  ::unsetenv("TRIREME_HOST_ID");
}

}  // namespace
}  // namespace trireme
