#include "trireme/checkpoint/shard.h"

#include <ATen/ops/arange.h>
#include <gmock/gmock.h>

#include "trireme/base/error.h"

namespace trireme::checkpoint {
namespace {

using testing::ElementsAre;
using Sizes = std::vector<std::int64_t>;

Box box(Sizes offsets, Sizes sizes) { return {.offsets = std::move(offsets), .sizes = std::move(sizes)}; }

std::vector<std::string> described(const std::vector<Box>& boxes) {
  std::vector<std::string> result;
  for (const Box& each : boxes) result.push_back(describe(each));
  return result;
}

/// The numbers of consecutive boxes.
Sizes numbers_in(const at::Tensor& tensor, const std::vector<Box>& boxes) {
  Sizes numbers;
  for (const Box& each : boxes) {
    const at::Tensor flat = view_of(tensor, whole_box(tensor.sizes()), each).contiguous().view(-1);
    for (std::int64_t i = 0; i < flat.numel(); ++i) numbers.push_back(flat[i].item<std::int64_t>());
  }
  return numbers;
}

TEST(Box, OverlapIsTheCommonPart) {
  EXPECT_EQ(overlap(box({0, 0}, {4, 8}), box({2, 6}, {4, 8})), box({2, 6}, {2, 2}));
  EXPECT_EQ(overlap(box({0, 0}, {4, 8}), box({4, 0}, {4, 8})), std::nullopt) << "they touch";
  EXPECT_EQ(overlap(box({}, {}), box({}, {})), box({}, {}));
  EXPECT_EQ(overlap(box({0}, {0}), box({0}, {4})), std::nullopt);
  EXPECT_THROW(overlap(box({0}, {4}), box({0, 0}, {4, 1})), InvalidArgument);
}

TEST(Box, LiesInATensorOrNot) {
  EXPECT_TRUE(lies_in(box({2, 0}, {2, 8}), {4, 8}));
  EXPECT_FALSE(lies_in(box({3, 0}, {2, 8}), {4, 8}));
  EXPECT_FALSE(lies_in(box({-1, 0}, {2, 8}), {4, 8}));
  EXPECT_FALSE(lies_in(box({0}, {4}), {4, 8}));
  EXPECT_FALSE(lies_in(box({INT64_MAX}, {1}), {4}));
}

TEST(Box, PiecesFollowOrderOfBox) {
  const at::Tensor numbers = at::arange(4 * 3 * 5, at::kLong).view({4, 3, 5});
  for (const Box& of : {whole_box(numbers.sizes()), box({1, 0, 2}, {2, 3, 2})}) {
    const Sizes expected = numbers_in(numbers, {of});
    for (const std::uint64_t most : {1, 8, 16, 40, 100, 120, 500}) {
      const std::vector<Box> pieces = pieces_of(of, 8, most);
      EXPECT_EQ(numbers_in(numbers, pieces), expected) << most;
      for (const Box& piece : pieces) {
        EXPECT_TRUE(piece.numel() == 1 || piece.numel() * 8 <= static_cast<std::int64_t>(most)) << most;
      }
    }
  }
  EXPECT_THAT(described(pieces_of(whole_box({4, 8}), 4, 64)), ElementsAre("[0:2,0:8]", "[2:4,0:8]"));
  EXPECT_TRUE(pieces_of(whole_box({0, 8}), 4, 64).empty());
  EXPECT_THAT(described(pieces_of(whole_box({}), 4, 1)), ElementsAre("[]"));
}

TEST(FlatRange, IsAFewBoxesInItsOrder) {
  EXPECT_THAT(described(boxes_of_flat_range({4, 8}, 3, 30)),
              ElementsAre("[0:1,3:8]", "[1:3,0:8]", "[3:4,0:6]"));
  EXPECT_THAT(described(boxes_of_flat_range({4, 8}, 8, 24)), ElementsAre("[1:3,0:8]"));
  EXPECT_THAT(described(boxes_of_flat_range({4, 8}, 9, 12)), ElementsAre("[1:2,1:4]"));
  EXPECT_THAT(described(boxes_of_flat_range({}, 0, 1)), ElementsAre("[]"));
  EXPECT_TRUE(boxes_of_flat_range({4, 0}, 0, 10).empty());
}

TEST(FlatRange, AnyRangeHasItsElementsWithoutPadding) {
  const at::Tensor numbers = at::arange(3 * 2 * 4, at::kLong).view({3, 2, 4});
  for (std::int64_t begin = 0; begin <= 30; ++begin) {
    for (std::int64_t end = begin; end <= 30; ++end) {
      Sizes expected;
      for (std::int64_t i = begin; i < std::min<std::int64_t>(end, 24); ++i) expected.push_back(i);
      const std::vector<Box> boxes = boxes_of_flat_range(numbers.sizes(), begin, end);
      EXPECT_EQ(numbers_in(numbers, boxes), expected) << begin << " " << end;
      EXPECT_LE(boxes.size(), 5u);
    }
  }
}

}  // namespace
}  // namespace trireme::checkpoint
