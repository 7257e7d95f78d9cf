// Sites and racks in the names of hosts.

#include "trireme/topology/levels.h"

#include <gmock/gmock.h>

namespace trireme::topology {
namespace {

using testing::ElementsAre;

TEST(Levels, AreReadFromTheNamesOfHosts) {
  const Levels two = levels_of({"a/n0", "b/n2", "a/n1", "b/n3"});
  EXPECT_THAT(two.sizes, ElementsAre(2, 2));
  EXPECT_THAT(two.members, ElementsAre(0, 2, 1, 3)) << "in the order of names, whatever the order of ranks";
  const Levels three =
      levels_of({"a/r0/n0", "a/r0/n1", "a/r1/n0", "a/r1/n1", "b/r0/n0", "b/r0/n1", "b/r1/n0", "b/r1/n1"});
  EXPECT_THAT(three.sizes, ElementsAre(2, 2, 2));
  EXPECT_THAT(three.members, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(Levels, OfOnePartAreLeftOut) {
  EXPECT_THAT(levels_of({"a/r0/n0", "a/r0/n1", "b/r0/n2", "b/r0/n3"}).sizes, ElementsAre(2, 2));
  EXPECT_THAT(levels_of({"site/n0", "site/n1", "site/n2"}).sizes, ElementsAre(3)) << "all at one site";
  // Names of hosts without a configured name: boot id and PID namespace.
  EXPECT_THAT(levels_of({"4e2f/pid:[1]", "77aa/pid:[1]"}).sizes, ElementsAre(2));
}

TEST(Levels, UnevenOrMissingOnesAreOneLevel) {
  for (const std::vector<std::string>& hosts : {std::vector<std::string>{"a", "b", "c"},
                                                {"a/n0", "a/n1", "b/n2"},
                                                {"a/n0", "b/r/n1"},
                                                {"a/r0/n0", "a/r0/n1", "a/r1/n2", "b/r0/n3"},
                                                {"a/r0/n0", "a/r0/n1", "b/r0/n2", "b/r1/n3"},
                                                {"", ""}}) {
    const Levels levels = levels_of(hosts);
    EXPECT_THAT(levels.sizes, ElementsAre(static_cast<int>(hosts.size()))) << hosts[0];
    ASSERT_EQ(levels.members.size(), hosts.size());
    for (std::size_t i = 0; i < hosts.size(); ++i) EXPECT_EQ(levels.members[i], static_cast<int>(i));
  }
  EXPECT_THAT(levels_of({"a"}).sizes, ElementsAre(1));
}

}  // namespace
}  // namespace trireme::topology
