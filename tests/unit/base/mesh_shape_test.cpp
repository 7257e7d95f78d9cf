#include "trireme/base/mesh_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme {
namespace {

using testing::ElementsAre;

const MeshShape kMesh({{"pp", 2}, {"dp", 3}, {"tp", 2}});

TEST(MeshShape, RankFollowsFromCoordinatesAndBack) {
  for (int rank = 0; rank < kMesh.num_ranks(); ++rank) {
    const int pp = kMesh.coordinate(rank, "pp"), dp = kMesh.coordinate(rank, "dp"),
              tp = kMesh.coordinate(rank, "tp");
    EXPECT_EQ(rank, (pp * 3 + dp) * 2 + tp);
    EXPECT_EQ(kMesh.rank_at({pp, dp, tp}), rank);
    EXPECT_EQ(kMesh.coordinate(rank, "cp"), 0) << "it has no such axis";
  }
}

TEST(MeshShape, GroupsOfAFoldPartitionTheRanks) {
  EXPECT_THAT(kMesh.groups({"tp"}), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4, 5),
                                                ElementsAre(6, 7), ElementsAre(8, 9), ElementsAre(10, 11)));
  EXPECT_THAT(kMesh.groups({"pp", "tp"}),
              ElementsAre(ElementsAre(0, 1, 6, 7), ElementsAre(2, 3, 8, 9), ElementsAre(4, 5, 10, 11)));
  EXPECT_THAT(kMesh.groups({}), testing::SizeIs(12));
  EXPECT_THAT(kMesh.groups({"cp"}), testing::SizeIs(12)) << "of one rank each";
}

TEST(MeshShape, PlaceInFoldIsPlaceInGroup) {
  for (const MeshShape::Fold& fold : std::vector<MeshShape::Fold>{{"dp"}, {"pp", "tp"}, {"pp", "dp", "tp"}}) {
    for (const std::vector<int>& group : kMesh.groups(fold)) {
      for (std::size_t i = 0; i < group.size(); ++i)
        EXPECT_EQ(kMesh.place(group[i], fold), static_cast<int>(i)) << group[i];
    }
  }
  EXPECT_EQ(kMesh.size(MeshShape::Fold{"pp", "tp"}), 4);
}

TEST(MeshShape, SplitPutsNeighboursOnTheInnerAxis) {
  const MeshShape split = MeshShape({{"pp", 2}, {"dp", 4}}).split("dp", "sites", "site", 2);
  EXPECT_EQ(split, MeshShape({{"pp", 2}, {"sites", 2}, {"site", 2}}));
  EXPECT_THAT(split.groups({"site"}).front(), ElementsAre(0, 1));
  EXPECT_THROW(kMesh.split("dp", "a", "b", 2), InvalidArgument) << "2 does not divide 3";
  EXPECT_THROW(kMesh.split("ep", "a", "b", 1), InvalidArgument);
}

TEST(MeshShape, OnlyKeepsTheOrderOfItsAxes) {
  EXPECT_EQ(kMesh.only({"tp", "pp", "cp"}), MeshShape({{"pp", 2}, {"tp", 2}}));
}

TEST(MeshShape, RejectsAxesThatAreNone) {
  EXPECT_THROW(MeshShape({{"dp", 0}}), InvalidArgument);
  EXPECT_THROW(MeshShape({{"", 2}}), InvalidArgument);
  EXPECT_THROW(MeshShape({{"dp", 2}, {"dp", 2}}), InvalidArgument);
  EXPECT_THROW(kMesh.rank_at({0, 0}), InvalidArgument);
  EXPECT_THROW(kMesh.rank_at({0, 3, 0}), InvalidArgument);
}

}  // namespace
}  // namespace trireme
