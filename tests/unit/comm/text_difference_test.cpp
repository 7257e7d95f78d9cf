#include "trireme/comm/text_difference.h"

#include <gtest/gtest.h>

#include <vector>

#include "trireme/comm/context.h"
#include "trireme/comm/mesh.h"

namespace trireme::comm {
namespace {

/// The result of every rank of a world whose ranks have these texts.
std::string difference_between(const std::vector<std::string>& texts) {
  std::vector<std::string> found(texts.size());
  run_ranks_as_threads(static_cast<int>(texts.size()), [&](Context& context) {
    const auto rank = static_cast<std::size_t>(context.rank());
    const auto difference = find_text_difference(context.world(), texts[rank]);
    found[rank] = difference ? difference->describe() : "none";
  });
  for (const std::string& of_rank : found) EXPECT_EQ(of_rank, found.front());
  return found.front();
}

TEST(TextDifference, IsNoneWhereRanksHoldSameText) {
  EXPECT_EQ(difference_between({"a\nb\n", "a\nb\n", "a\nb\n"}), "none");
  EXPECT_EQ(difference_between({"", ""}), "none");
  EXPECT_EQ(difference_between({"alone"}), "none");
}

TEST(TextDifference, NamesFirstDifferentRankAndLine) {
  EXPECT_EQ(difference_between({"a\nb\nc", "a\nb\nc", "a\nx\ny", "z"}), "rank 0 'b', rank 2 'x'");
}

TEST(TextDifference, IsFoundWhereTextOnlyEndsEarlier) {
  EXPECT_EQ(difference_between({"a\nb", "a"}), "rank 0 'b', rank 1 ''");
  EXPECT_EQ(difference_between({"a", "a\nb"}), "rank 0 '', rank 1 'b'");
  EXPECT_EQ(difference_between({"", "a"}), "rank 0 '', rank 1 'a'");
}

TEST(TextDifference, NamesRanksOfWorldInGroup) {
  run_ranks_as_threads(4, [](Context& context) {
    Mesh mesh(context, {{"dp", 2}, {"pp", 2}});
    const auto difference = find_text_difference(mesh.group("dp"), context.rank() < 2 ? "left" : "right");
    ASSERT_TRUE(difference.has_value());
    EXPECT_EQ(difference->rank, context.rank() % 2);
    EXPECT_EQ(difference->other_rank, context.rank() % 2 + 2);
    EXPECT_EQ(difference->of_rank, "left");
    EXPECT_EQ(difference->of_other_rank, "right");
  });
}

}  // namespace
}  // namespace trireme::comm
