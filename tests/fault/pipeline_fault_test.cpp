// A rank dies, or stands still, in the middle of a pipeline's step.

#include <gmock/gmock.h>
#include <signal.h>

#include <string>

#include "tests/support/world.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using testing::HasSubstr;

constexpr int kRanks = 4;

TEST(PipelineFault, SurvivorsNameTheKilledRank) {
  for (const int victim : {0, 2, 3}) {
    SCOPED_TRACE(victim);
    auto ranks = start_all({.size = kRanks, .command = {bin("example_own_pipeline"), "1f1b", "100000000"}});
    ASSERT_TRUE(ranks[0]->wait_for_output("step 20:", 60));
    ranks[static_cast<std::size_t>(victim)]->send_signal(SIGKILL);
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == victim) continue;
      const ChildResult result = ranks[static_cast<std::size_t>(rank)]->wait(60);
      EXPECT_EQ(result.exit_code, 3) << "rank " << rank << ": " << result.err;
      EXPECT_THAT(result.err, HasSubstr(text("rank ", victim))) << "rank " << rank;
    }
  }
}

}  // namespace
}  // namespace trireme::test
