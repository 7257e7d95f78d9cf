#include "trireme/wire/shared_memory.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <set>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/wire/shared_arena.h"

namespace trireme::wire {
namespace {

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const CommError& error) {
    return error.what();
  }
  return "no error";
}

TEST(SharedMemory, IsZeroAndEqualForAllMappings) {
  const auto made = SharedMemory::create(10000);
  const auto attached = SharedMemory::attach(made->address());
  ASSERT_EQ(attached->bytes(), 10000U);
  ASSERT_NE(attached->data(), made->data());
  EXPECT_EQ(attached->data()[9999], std::byte{0});
  made->data()[9999] = std::byte{5};
  EXPECT_EQ(attached->data()[9999], std::byte{5});
}

TEST(SharedMemory, OutlivesItsMakerWhileSomebodyHoldsIt) {
  auto made = SharedMemory::create(100);
  made->data()[1] = std::byte{3};
  const auto attached = SharedMemory::attach(made->address());
  made.reset();
  EXPECT_EQ(attached->data()[1], std::byte{3});
}

TEST(SharedMemory, ReportsNeededAndAvailableSize) {
  // So large that the kernel would reject it at once if the check before were missing.
  EXPECT_THAT(message_of([] { SharedMemory::create(std::size_t{1} << 63); }),
              testing::AllOf(testing::HasSubstr("(9223372036854775808 bytes) of shared memory: only "),
                             testing::HasSubstr(" are available")));
}

TEST(SharedMemory, NamesTheProcessThatCannotBeAttached) {
  EXPECT_THAT(message_of([] { SharedMemory::attach("999999999:3:100"); }),
              testing::HasSubstr("shared memory of process 999999999"));
  const auto made = SharedMemory::create(8192);
  EXPECT_THAT(message_of([&] { SharedMemory::attach(::getpid(), made->descriptor(), 4096); }),
              testing::HasSubstr("has 8192 bytes instead of 4096"));
}

TEST(SharedMemory, FollowsOnlyAddressesWithinIt) {
  const auto inside = SharedMemory::create_in_process(100);
  EXPECT_EQ(SharedMemory::attach_in_process(inside->address()), inside);
  const std::string place = inside->address().substr(inside->address().rfind(':'));
  const auto refused = testing::HasSubstr("not an address of shared memory");
  for (const std::string& address :
       {inside->address(), "in-process" + place, std::string("in-process:0"), std::string("1:2"),
        std::string("1:2:3:4"), std::string("a:b:c"), std::string("99999999999:1:1"), std::string()}) {
    EXPECT_THAT(message_of([&] { SharedMemory::attach(address); }), refused) << address;
  }
  for (const std::string& address :
       {"in-process:1" + place, "in-process" + place, SharedMemory::create(8)->address()}) {
    EXPECT_THAT(message_of([&] { SharedMemory::attach_in_process(address); }),
                testing::HasSubstr("is no memory of this process"))
        << address;
  }
}

TEST(SharedMemory, IsNoOtherFileOfThatProcess) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  std::fputs("precious", file);
  std::fflush(file);
  EXPECT_THAT(message_of([&] { SharedMemory::attach(::getpid(), ::fileno(file), 8); }),
              testing::HasSubstr("no memory of trireme"));
  std::fclose(file);
}

class Arena : public testing::Test {
 protected:
  std::shared_ptr<const ControlBlock> block_ = std::make_shared<const ControlBlock>(
      SharedMemory::create_in_process(ControlBlock::bytes(BlockLayout::for_size(1))),
      BlockLayout::for_size(1));
  SharedArena arena_{block_, 0};
};

TEST_F(Arena, ReusesFreedBlocks) {
  std::byte* first = arena_.allocate(1000);
  std::byte* second = arena_.allocate(1000);
  arena_.free(first);
  EXPECT_EQ(arena_.allocate(900), first);
  EXPECT_NE(arena_.allocate(900), second);
}

TEST_F(Arena, KnowsInnerViewsButNoForeignMemory) {
  std::byte* first = arena_.allocate(5 << 20);
  const auto location = arena_.locate(first + 4096, 1 << 20);
  ASSERT_TRUE(location.has_value());
  EXPECT_EQ(location->offset, 4096U);
  EXPECT_FALSE(arena_.locate(first + 4096, 5 << 20).has_value()) << "it ends outside";
  const std::vector<std::byte> own(100);
  EXPECT_FALSE(arena_.locate(own.data(), own.size()).has_value());
}

TEST_F(Arena, HoldsMoreBlocksThanSegments) {
  constexpr std::size_t kBlock = 4096;
  SharedArena small(block_, 0, /*smallest_segment_bytes=*/kBlock);
  std::vector<std::byte*> blocks;
  std::set<std::uint32_t> segments;
  for (std::size_t i = 0; i < 8 * kMaxSegments; ++i) {
    blocks.push_back(small.allocate(kBlock));
    blocks.back()[0] = blocks.back()[kBlock - 1] = static_cast<std::byte>(i);
    const auto location = small.locate(blocks.back(), kBlock);
    ASSERT_TRUE(location.has_value());
    segments.insert(location->segment);
  }
  EXPECT_LT(segments.size(), kMaxSegments / 2);
  for (std::size_t i = 0; i < blocks.size(); ++i)
    EXPECT_EQ(blocks[i][kBlock - 1], static_cast<std::byte>(i)) << "nobody else has written there";
  for (std::byte* block : blocks) small.free(block);
  segments.clear();
  for (std::byte* block : blocks) {
    if (const auto location = small.locate(block, 1)) segments.insert(location->segment);
  }
  EXPECT_LE(segments.size(), 1U) << "and all of it is given back, but for one segment";
}

TEST_F(Arena, KeepsOneSmallSegmentForReuse) {
  std::byte* first = arena_.allocate(1000);
  const auto before = arena_.locate(first, 1);
  for (int i = 0; i < 3; ++i) {
    arena_.free(first);
    first = arena_.allocate(2000);
    const auto after = arena_.locate(first, 1);
    ASSERT_TRUE(before && after);
    EXPECT_EQ(after->segment, before->segment);
    EXPECT_EQ(after->generation, before->generation) << "peers would attach it anew";
  }
  std::byte* second = arena_.allocate(SharedArena::kSmallestSegmentBytes);  // in another segment
  arena_.free(first);
  arena_.free(second);
  EXPECT_TRUE(arena_.locate(first, 1).has_value());
  EXPECT_FALSE(arena_.locate(second, 1).has_value()) << "one is enough";
}

TEST_F(Arena, KeepsNoLargeOrUnreachableSegment) {
  std::byte* large = arena_.allocate(SharedArena::kSmallestSegmentBytes + 1);
  arena_.free(large);
  EXPECT_FALSE(arena_.locate(large, 1).has_value());
  std::byte* own = arena_.allocate(1000);
  arena_.make_private(own, 1000);
  arena_.free(own);
  EXPECT_FALSE(arena_.locate(own, 1).has_value());
}

TEST_F(Arena, AnnouncesGenerationOfReplacedSegment) {
  std::byte* first = arena_.allocate(5 << 20);
  const auto before = arena_.locate(first, 1);
  arena_.free(first);
  const auto after = arena_.locate(arena_.allocate(6 << 20), 1);
  ASSERT_TRUE(before && after);
  EXPECT_EQ(before->segment, after->segment);
  EXPECT_NE(before->generation, after->generation);
}

}  // namespace
}  // namespace trireme::wire
