// The table of mesh axes, and meshes as text.
#include "trireme/base/mesh_axes.h"

#include <gmock/gmock.h>

#include <set>
#include <string>

#include "trireme/base/error.h"

namespace trireme {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(MeshAxes, AreOneTableWithTheSlowestFirst) {
  std::vector<std::string> names;
  std::set<std::string> keys;
  int num_rests = 0;
  for (const AxisRow& row : mesh_axes()) {
    names.emplace_back(row.name);
    keys.insert(row.key);
    num_rests += row.is_rest ? 1 : 0;
  }
  EXPECT_THAT(names, ElementsAre("pp", "dp", "ep", "cp", "tp"));
  EXPECT_EQ(keys.size(), names.size());
  EXPECT_EQ(num_rests, 1);
}

TEST(MeshAxes, AreFoundByTheirSharedWork) {
  EXPECT_THAT(axes_that_share({Shared::kSamples}), ElementsAre("dp", "ep"));
  EXPECT_THAT(axes_that_share({Shared::kExperts}), ElementsAre("ep"));
  EXPECT_THAT(axes_that_share_none({Shared::kStages, Shared::kLayers}), ElementsAre("dp", "ep", "cp"));
  EXPECT_THAT(axes_that_share_none({Shared::kStages, Shared::kLayers, Shared::kExperts}),
              ElementsAre("dp", "cp"));
}

TEST(MeshAxes, FollowTableOrderAndOneTakesRest) {
  EXPECT_EQ(parse_mesh("tp=2,ep=2", 8), MeshShape({{"dp", 2}, {"ep", 2}, {"tp", 2}}));
  EXPECT_EQ(parse_mesh("tp=2,dp=1", 2), MeshShape({{"dp", 1}, {"tp", 2}}));
  EXPECT_EQ(parse_mesh("tp=4", 4), MeshShape({{"tp", 4}})) << "no rank is left for another replica";
}

TEST(MeshAxes, RejectsWordsThatFormNoMesh) {
  const auto expect = [](const char* words, const char* message) {
    EXPECT_THAT([&] { parse_mesh(words, 8); }, ThrowsMessage<InvalidArgument>(HasSubstr(message))) << words;
  };
  expect("", "no AXIS=SIZE");
  expect("tp=", "no AXIS=SIZE");
  expect("tp=two", "no AXIS=SIZE");
  expect("tp=0", "no AXIS=SIZE");
  expect("tp=2,tp=2", "is there twice");
  expect("xp=2", "there is no axis 'xp'");
  expect("tp=3", "there are 8");
  expect("dp=2,tp=2", "is of 4 ranks, and there are 8");
  expect("tp=999999999,cp=999999999", "more than the 8 ranks");
}

TEST(MeshShape, AdjacentAxesBecomeOne) {
  const MeshShape mesh({{"pp", 2}, {"dp", 3}, {"cp", 2}, {"tp", 2}});
  EXPECT_EQ(mesh.merge({"dp", "ep", "cp"}, "copies"), MeshShape({{"pp", 2}, {"copies", 6}, {"tp", 2}}));
  EXPECT_EQ(mesh.merge({"ep"}, "none"), mesh);
  EXPECT_THROW(mesh.merge({"pp", "cp"}, "apart"), InvalidArgument);
}

}  // namespace
}  // namespace trireme
