#include "trireme/topology/core_places.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"

namespace trireme::topology {
namespace {

using testing::ElementsAre;
using Cores = std::vector<int>;

/// Two sockets with one node each. Each has two caches, each cache two physical cores, and each core two
/// threads, whose numbers differ by 8.
std::vector<CorePlace> two_sockets() {
  std::vector<CorePlace> places;
  for (int number = 0; number < 16; ++number) {
    const int core = number % 8;
    places.push_back({.number = number,
                      .socket = core / 4,
                      .node = core / 4,
                      .cache = core / 2 * 2,
                      .physical = core % 4});
  }
  return places;
}

TEST(CorePlaces, ProcessesGetPhysicalCoresNearEachOther) {
  EXPECT_THAT(share_out(two_sockets(), 2),
              ElementsAre(Cores{0, 1, 2, 3, 8, 9, 10, 11}, Cores{4, 5, 6, 7, 12, 13, 14, 15}));
  EXPECT_THAT(share_out(two_sockets(), 4),
              ElementsAre(Cores{0, 1, 8, 9}, Cores{2, 3, 10, 11}, Cores{4, 5, 12, 13}, Cores{6, 7, 14, 15}));
  EXPECT_THAT(share_out(two_sockets(), 3),
              ElementsAre(Cores{0, 1, 8, 9}, Cores{2, 3, 4, 10, 11, 12}, Cores{5, 6, 7, 13, 14, 15}));
  const auto threads = share_out(two_sockets(), 16);
  EXPECT_THAT(threads.front(), ElementsAre(0));
  EXPECT_THAT(threads[1], ElementsAre(8)) << "the other thread of the same core is nearest";
  EXPECT_THROW(share_out(two_sockets(), 17), InvalidArgument);
  EXPECT_THROW(share_out(two_sockets(), 0), InvalidArgument);
}

TEST(CorePlaces, SharesAllUsableCores) {
  for (int processes = 1; processes <= 16; ++processes) {
    Cores all;
    for (const Cores& share : share_out(two_sockets(), processes)) {
      EXPECT_FALSE(share.empty());
      all.insert(all.end(), share.begin(), share.end());
    }
    std::ranges::sort(all);
    Cores expected(16);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(all, expected) << processes;
  }
}

TEST(CorePlaces, NodeIsSharedByItsRanks) {
  const auto wide = with_nodes(two_sockets(), share_out(two_sockets(), 4));
  EXPECT_EQ(wide[0], wide[1]);
  EXPECT_THAT(wide[0], ElementsAre(0, 1, 2, 3, 8, 9, 10, 11));
  EXPECT_THAT(wide[3], ElementsAre(4, 5, 6, 7, 12, 13, 14, 15));
}

TEST(CorePlaces, AreReadFromTheKernelsFiles) {
  const test::TemporaryFolder folder;
  const auto write = [&](const std::string& name, const std::string& content) {
    std::filesystem::create_directories((folder.path() / name).parent_path());
    write_file_atomic(folder.path() / name, content);
  };
  write("cpu6/topology/physical_package_id", "1\n");
  write("cpu6/topology/core_id", "3\n");
  write("cpu6/cache/index0/level", "1\n");
  write("cpu6/cache/index0/shared_cpu_list", "6,14\n");
  write("cpu6/cache/index3/level", "3\n");
  write("cpu6/cache/index3/shared_cpu_list", "4-7,12-15\n");
  write("cpu6/node2/cpulist", "4-7\n");
  const Cores cores = {6, 9};
  const std::vector<CorePlace> places = core_places(cores, folder.path());
  ASSERT_EQ(places.size(), 2u);
  EXPECT_EQ(places[0].socket, 1);
  EXPECT_EQ(places[0].physical, 3);
  EXPECT_EQ(places[0].cache, 4);
  EXPECT_EQ(places[0].node, 2);
  EXPECT_EQ(places[1].number, 9) << "of which nothing is known";
  EXPECT_THAT(share_out(core_places(Cores{2, 3}, folder.path() / "nothing"), 2),
              ElementsAre(Cores{2}, Cores{3}));
}

TEST(CorePlaces, AreNamedInRuns) {
  EXPECT_EQ(describe_cores(Cores{0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_EQ(describe_cores(Cores{}), "");
}

}  // namespace
}  // namespace trireme::topology
