// A rank is killed while shards are reduced and gathered, with several operations in flight. No launcher
// notifies the other ranks.

#include <gmock/gmock.h>
#include <signal.h>

#include <string>

#include "tests/support/world.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

constexpr double kBound_s = 60;

struct Case {
  const char* name;
  const char* backend;
  std::vector<std::string> hosts;  ///< by rank
};

class ShardsFault : public testing::TestWithParam<Case> {
 protected:
  static void expect_survivors_to_name(int victim) {
    const Case& hosts = GetParam();
    World world{.size = static_cast<int>(hosts.hosts.size()),
                .command = {bin("rank_shards"), hosts.backend, "1000000"}};
    for (int rank = 0; rank < world.size; ++rank)
      world.extra[rank]["TRIREME_HOST_ID"] = hosts.hosts[static_cast<std::size_t>(rank)];
    auto ranks = start_all(world);
    for (int rank = 0; rank < world.size; ++rank) {
      ASSERT_TRUE(ranks[static_cast<std::size_t>(rank)]->wait_for_output(text("rank ", rank, " is under way"),
                                                                         kBound_s));
    }
    ranks[static_cast<std::size_t>(victim)]->send_signal(SIGKILL);
    for (int rank = 0; rank < world.size; ++rank) {
      if (rank == victim) continue;
      const ChildResult result = ranks[static_cast<std::size_t>(rank)]->wait(kBound_s);
      EXPECT_FALSE(result.timed_out) << "rank " << rank;
      EXPECT_EQ(result.exit_code, 3) << "rank " << rank << ", signal " << result.signal << ": " << result.err;
      EXPECT_THAT(result.err, testing::ContainsRegex(text("(reduce_scatter|all_gather).*rank ", victim)))
          << "rank " << rank;
    }
  }
};

TEST_P(ShardsFault, SurvivorsNameTheKilledRank) { expect_survivors_to_name(1); }

TEST_P(ShardsFault, SurvivorsNameLastRankOfLastHost) {
  expect_survivors_to_name(static_cast<int>(GetParam().hosts.size()) - 1);
}

INSTANTIATE_TEST_SUITE_P(
    Backends, ShardsFault,
    testing::Values(Case{"gloo", "gloo", {"one", "one", "one"}}, Case{"shm", "shm", {"one", "one", "one"}},
                    Case{"even_hosts", "hierarchical", {"left", "left", "right", "right"}},
                    Case{"uneven_hosts", "hierarchical", {"left", "left", "right"}}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace trireme::test
