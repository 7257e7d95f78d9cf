// A rank is killed during data-parallel training, or continues after a pass that an exception ended. No
// launcher notifies the other ranks.

#include <gmock/gmock.h>
#include <signal.h>

#include <string>

#include "tests/support/world.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using testing::ContainsRegex;

constexpr int kRanks = 3;
constexpr double kEnd_s = 60;

class DataParallelFault : public testing::TestWithParam<const char*> {
 protected:
  static void set_hosts(World& world) {
    const bool two_hosts = std::string(GetParam()) == "hierarchical";
    for (int rank = 0; two_hosts && rank < kRanks; ++rank) {
      world.extra[rank]["TRIREME_HOST_ID"] = rank < 2 ? "left" : "right";
    }
  }
  /// Kills the rank during training and checks the messages of the survivors.
  static void expect_survivors_to_name(int victim) {
    World world{.size = kRanks, .command = {bin("rank_ddp_steps"), GetParam(), "1000000"}};
    set_hosts(world);
    auto ranks = start_all(world);
    for (int rank = 0; rank < kRanks; ++rank) {
      ASSERT_TRUE(ranks[static_cast<std::size_t>(rank)]->wait_for_output(text("rank ", rank, " is under way"),
                                                                         kEnd_s));
    }
    ranks[static_cast<std::size_t>(victim)]->send_signal(SIGKILL);
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == victim) continue;
      const ChildResult result = ranks[static_cast<std::size_t>(rank)]->wait(kEnd_s);
      EXPECT_FALSE(result.timed_out) << "rank " << rank;
      EXPECT_EQ(result.exit_code, 3) << "rank " << rank << ", signal " << result.signal << ": " << result.err;
      EXPECT_THAT(result.err,
                  ContainsRegex(text("backward of step [0-9]+: .*(all_reduce|broadcast).*rank ", victim)))
          << "rank " << rank;
    }
  }
};

TEST_P(DataParallelFault, SurvivorsNameRankKilledInBackward) { expect_survivors_to_name(1); }

TEST_P(DataParallelFault, SurvivorsNameRankZeroToo) { expect_survivors_to_name(0); }

TEST_P(DataParallelFault, SurvivorsNameOnlyRankOfItsHost) { expect_survivors_to_name(2); }

TEST_P(DataParallelFault, AllRanksNameRankAfterBrokenPass) {
  World world{.size = kRanks, .command = {bin("rank_ddp_steps"), GetParam(), "1000000", "20"}};
  set_hosts(world);
  auto ranks = start_all(world);
  for (int rank = 0; rank < kRanks; ++rank) {
    const ChildResult result = ranks[static_cast<std::size_t>(rank)]->wait(kEnd_s);
    EXPECT_FALSE(result.timed_out) << "rank " << rank;
    EXPECT_EQ(result.exit_code, 3) << "rank " << rank << ", signal " << result.signal << ": " << result.err;
    // Rank 0 can finish step 19 before a rank without a free core has seen the end of that step.
    EXPECT_THAT(result.err, ContainsRegex(text("backward of step ", rank == 0 ? "21" : "(19|20)",
                                               ": rank 0, group 'world': a backward pass ended before all "
                                               "gradients were reduced \\([1-9]+ of [0-9]+ buckets")))
        << "rank " << rank;
  }
}

/// Two ranks on each of two hosts, whose gradients are compressed between hosts.
class BetweenHostsFault : public testing::TestWithParam<int> {};

TEST_P(BetweenHostsFault, SurvivorsNameRankKilledInBackward) {
  World world{.size = 4, .command = {bin("rank_ddp_steps"), "hierarchical", "1000000", "-1", "top-k"}};
  for (int rank = 0; rank < 4; ++rank) world.extra[rank]["TRIREME_HOST_ID"] = rank < 2 ? "left" : "right";
  auto ranks = start_all(world);
  for (int rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(
        ranks[static_cast<std::size_t>(rank)]->wait_for_output(text("rank ", rank, " is under way"), kEnd_s));
  }
  ranks[static_cast<std::size_t>(GetParam())]->send_signal(SIGKILL);
  for (int rank = 0; rank < 4; ++rank) {
    if (rank == GetParam()) continue;
    const ChildResult result = ranks[static_cast<std::size_t>(rank)]->wait(kEnd_s);
    EXPECT_FALSE(result.timed_out) << "rank " << rank;
    EXPECT_EQ(result.exit_code, 3) << "rank " << rank << ", signal " << result.signal << ": " << result.err;
    EXPECT_THAT(result.err,
                ContainsRegex(text("backward of step [0-9]+: .*(reduce|all_reduce|all_gather|broadcast) "
                                   "#[0-9]+.*rank ",
                                   GetParam(), " \\(pid [0-9]+\\)")))
        << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Victims, BetweenHostsFault, testing::Values(1, 2, 3));

INSTANTIATE_TEST_SUITE_P(Backends, DataParallelFault, testing::Values("gloo", "shm", "hierarchical"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace trireme::test
