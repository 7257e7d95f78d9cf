#include "trireme/base/large_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace trireme {
namespace {

constexpr std::size_t kBlockMib = 1 << 20;

TEST(LargeBlocks, AreReusedInPlace) {
  LargeBlocks blocks;
  void* const first = blocks.allocate(8 * kBlockMib);
  std::memset(first, 1, 8 * kBlockMib);
  EXPECT_TRUE(blocks.free(first));
  EXPECT_EQ(blocks.allocate(8 * kBlockMib - 100), first);
  EXPECT_EQ(blocks.use().mapped_bytes, 8 * kBlockMib);
  EXPECT_TRUE(blocks.free(first));
}

TEST(LargeBlocks, KnowTheirOwnAddressesOnly) {
  LargeBlocks blocks;
  std::vector<char> other(2 * kBlockMib);
  EXPECT_FALSE(blocks.free(other.data()));
  void* const block = blocks.allocate(kBlockMib);
  EXPECT_TRUE(blocks.free(block));
  EXPECT_FALSE(blocks.free(block));
}

TEST(LargeBlocks, OtherSizesReplaceKeptBlocks) {
  LargeBlocks blocks;
  blocks.free(blocks.allocate(16 * kBlockMib));
  for (std::size_t mib = 15; mib > 1; --mib) blocks.free(blocks.allocate(mib * kBlockMib));
  for (std::size_t mib = 1; mib < 16; ++mib) blocks.free(blocks.allocate(mib * kBlockMib));
  EXPECT_LE(blocks.use().mapped_bytes, 17 * kBlockMib);
}

/// Random sizes and lifetimes, unlike those of a step, fragment a heap.
TEST(LargeBlocks, MapLittleMoreThanPeakUse) {
  LargeBlocks blocks;
  std::mt19937 random(1);
  std::vector<void*> held;
  std::size_t max_in_use = 0;
  for (int i = 0; i < 4000; ++i) {
    if (held.size() > 20 || (!held.empty() && random() % 2 == 0)) {
      std::swap(held[random() % held.size()], held.back());
      EXPECT_TRUE(blocks.free(held.back()));
      held.pop_back();
    } else {
      held.push_back(blocks.allocate(kBlockMib + random() % (31 * kBlockMib)));
      ASSERT_NE(held.back(), nullptr);
      *static_cast<char*>(held.back()) = 1;
    }
    const LargeBlocks::Use use = blocks.use();
    max_in_use = std::max(max_in_use, use.in_use_bytes);
    ASSERT_LE(use.mapped_bytes, max_in_use + max_in_use / 8);
  }
  for (void* each : held) blocks.free(each);
}

TEST(LargeBlocks, KeepTheirContentWhileOthersAreResized) {
  LargeBlocks blocks;
  std::vector<char*> held;
  for (char i = 1; i < 9; ++i) {
    held.push_back(static_cast<char*>(blocks.allocate(static_cast<std::size_t>(i) * kBlockMib)));
    std::memset(held.back(), i, static_cast<std::size_t>(i) * kBlockMib);
  }
  for (std::size_t i = 0; i < 8; i += 2) blocks.free(held[i]);
  std::vector<void*> more;
  for (const std::size_t mib : {2, 4, 6}) {
    more.push_back(blocks.allocate(mib * kBlockMib));
    std::memset(more.back(), 100, mib * kBlockMib);
  }
  for (std::size_t i = 1; i < 8; i += 2) {
    for (std::size_t at = 0; at < (i + 1) * kBlockMib; at += 4096)
      ASSERT_EQ(held[i][at], static_cast<char>(i + 1));
  }
}

TEST(LargeBlocks, UnneededBlocksOfWindowAreUnmapped) {
  LargeBlocks blocks;
  blocks.free(blocks.allocate(256 * kBlockMib));
  EXPECT_EQ(blocks.use().mapped_bytes, 256 * kBlockMib);
  for (int i = 0; i < 2 * LargeBlocks::kWindow; ++i) blocks.free(blocks.allocate(2 * kBlockMib));
  EXPECT_LE(blocks.use().mapped_bytes, 3 * kBlockMib);
  blocks.release();
  EXPECT_EQ(blocks.use().mapped_bytes, 0);
}

TEST(LargeBlocks, ThatNoMachineHasAreNone) {
  LargeBlocks blocks;
  EXPECT_EQ(blocks.allocate(std::size_t{1} << 60), nullptr);
  EXPECT_EQ(blocks.allocate(~std::size_t{0}), nullptr);
  for (std::size_t mib = 2; mib < 8; ++mib) blocks.free(blocks.allocate(mib * kBlockMib));
  EXPECT_LE(blocks.use().mapped_bytes, 8 * kBlockMib) << "the limit is that of what was given out";
}

}  // namespace
}  // namespace trireme
