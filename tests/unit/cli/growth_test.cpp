#include "cli/chaos/growth.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace trireme::cli {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

/// Samples once a second for two minutes.
template <class Memory, class Files>
Life life_of(const Memory& memory, const Files& files) {
  Life life{.who = "server 0"};
  for (std::uint64_t i = 0; i < 120; ++i)
    life.seen.push_back(
        {.at_s = static_cast<double>(i), .resident_bytes = memory(i), .descriptors = files(i)});
  return life;
}
std::uint64_t ten_files(std::uint64_t) { return 10; }
std::uint64_t flat_memory(std::uint64_t) { return 40 * kMiB; }

TEST(Growth, IsRiseAboveItsFirstThird) {
  EXPECT_EQ(life_of([](auto i) { return (40 + i / 10) * kMiB; }, ten_files).growth(),
            "server 0 grew: at most 43.0 MiB in the first third of its life, at least 48.0 MiB in the last");
  EXPECT_EQ(life_of(flat_memory, [](auto i) { return 10 + i / 30; }).growth(),
            "server 0 keeps descriptors: at most 11 in the first third of its life, at least 12 in the last");
}

TEST(Growth, IsNoOscillationAndNoSettling) {
  EXPECT_EQ(life_of(flat_memory, ten_files).growth(), "");
  EXPECT_EQ(life_of([](auto i) { return (40 + i % 20) * kMiB; }, [](auto i) { return 10 + i % 3; }).growth(),
            "");
  EXPECT_EQ(life_of([](auto i) { return std::min<std::uint64_t>(20 + i, 45) * kMiB; }, ten_files).growth(),
            "");
}

TEST(Growth, IsNotKnownOfAShortLife) {
  Life life = life_of([](auto i) { return (40 + i) * kMiB; }, ten_files);
  life.seen.resize(50);
  EXPECT_FALSE(life.is_long());
  EXPECT_EQ(life.growth(), "");
}

TEST(Growth, UsageOfProcessHasMemoryAndDescriptors) {
  const Usage before = usage_of(::getpid(), 0);
  EXPECT_GT(before.resident_bytes, kMiB);
  const int more = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(usage_of(::getpid(), 0).descriptors, before.descriptors + 1);
  ::close(more);
  EXPECT_EQ(usage_of(-1, 0).resident_bytes, 0U);
}

}  // namespace
}  // namespace trireme::cli
