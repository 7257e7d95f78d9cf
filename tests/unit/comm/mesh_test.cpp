#include "trireme/comm/mesh.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

TEST(Mesh, AxisGroupsDifferInOneCoordinateOnly) {
  run_ranks_as_threads(4, [](Context& context) {
    Mesh mesh(context, {{"dp", 2}, {"pp", 2}});
    const int rank = context.rank();
    EXPECT_EQ(mesh.coordinate("dp"), rank / 2);
    EXPECT_EQ(mesh.coordinate("pp"), rank % 2);
    EXPECT_EQ(mesh.group("dp").world_ranks(), (std::vector<int>{rank % 2, rank % 2 + 2}));
    EXPECT_EQ(mesh.group("pp").world_ranks(), (std::vector<int>{rank / 2 * 2, rank / 2 * 2 + 1}));
    EXPECT_EQ(mesh.rank_at({1, 0}), 2);
    auto tensor = at::full({3}, rank);
    mesh.group("dp").all_reduce(tensor);
    EXPECT_EQ(tensor[0].item<int>(), 2 * (rank % 2) + 2);
  });
}

TEST(Mesh, SeveralMeshesInContextNeverMixMessages) {
  run_ranks_as_threads(2, [](Context& context) {
    Mesh first(context, {{"dp", 2}}), second(context, {{"dp", 2}});
    EXPECT_NE(first.group("dp").name(), second.group("dp").name());
    auto ones = at::full({1}, 1), twos = at::full({1}, 2);
    // The ranks wait in different orders. Groups with the same name would add unrelated values.
    auto one = first.group("dp").all_reduce_async(ones), two = second.group("dp").all_reduce_async(twos);
    context.rank() == 0 ? (one.wait(), two.wait()) : (two.wait(), one.wait());
    EXPECT_EQ(ones.item<int>(), 2);
    EXPECT_EQ(twos.item<int>(), 4);
  });
}

TEST(Mesh, MissingAxisHasSizeOneWithoutGroup) {
  run_ranks_as_threads(2, [](Context& context) {
    Mesh mesh(context, {{"dp", 2}});
    EXPECT_FALSE(mesh.has("tp"));
    EXPECT_EQ(mesh.size("tp"), 1);
    EXPECT_EQ(mesh.coordinate("tp"), 0);
    EXPECT_THROW(mesh.group("dq"), InvalidArgument);
  });
}

TEST(Mesh, SizesHaveToMakeUpTheWorld) {
  const auto context = Context::join({});
  EXPECT_THROW(Mesh(*context, {{"dp", 2}}), InvalidArgument);
  EXPECT_THROW(Mesh(*context, {{"dp", 1}, {"dp", 1}}), InvalidArgument);
  EXPECT_NO_THROW(Mesh(*context, {{"dp", 1}, {"tp", 1}}));
}

}  // namespace
}  // namespace trireme::comm
