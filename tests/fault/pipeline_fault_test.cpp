// A rank dies or is stopped in the middle of a pipeline step.

#include <gmock/gmock.h>
#include <signal.h>

#include <string>
#include <vector>

#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
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

// Stages of an asynchronous pipeline wait in no collective. The other ranks depend on rank 0 most.
TEST(PipelineFault, AsynchronousPipelineEndsWhenRankZeroFreezes) {
  const TemporaryFolder folder;
  std::vector<std::string> words = {bin("trireme"), "train", checkout("examples/quick.toml"), "-n", "2"};
  for (const std::string& setting :
       {text("run.folder=", folder.path().string()), std::string("train.epochs=100000"),
        std::string("train.accumulation=1"), std::string("parallel.pipeline=2"),
        std::string("parallel.schedule=pipedream"), std::string("comm.timeout_s=4")}) {
    words.insert(words.end(), {"--set", setting});
  }
  ChildProcess launcher(words);
  ASSERT_TRUE(launcher.wait_for_output("step 50  test accuracy", 60));
  const auto pids = launcher.children();  // in the order in which the ranks were started
  ASSERT_EQ(pids.size(), 2u);
  ::kill(pids[0], SIGSTOP);
  const ChildResult result = launcher.wait(60);
  EXPECT_FALSE(result.timed_out) << result.err;
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr(text("rank 0 (pid ", pids[0], ") was frozen by SIGSTOP")));
}

// A stopped rank neither answers nor closes a connection.
TEST(PipelineFault, SurvivorsNameTheRankThatStandsStill) {
  constexpr std::size_t kVictim = 2;
  auto ranks =
      start_all({.size = kRanks, .command = {bin("example_own_pipeline"), "1f1b", "100000000", "auto", "8"}});
  ASSERT_TRUE(ranks[0]->wait_for_output("step 20:", 60));
  ranks[kVictim]->send_signal(SIGSTOP);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (rank == kVictim) continue;
    const ChildResult result = ranks[rank]->wait(150);
    EXPECT_FALSE(result.timed_out) << "rank " << rank;
    EXPECT_EQ(result.exit_code, 3) << "rank " << rank << ": " << result.err;
    EXPECT_THAT(result.err, HasSubstr(text("rank ", kVictim))) << "rank " << rank;
  }
  ranks[kVictim]->send_signal(SIGKILL);
}

}  // namespace
}  // namespace trireme::test
