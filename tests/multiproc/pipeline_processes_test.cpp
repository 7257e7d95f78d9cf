// Pipelines and shards over real processes: the examples.
#include <gmock/gmock.h>

#include <string>

#include "tests/support/child_process.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

/// What rank 0 printed: "step 10: loss 0.49..." and so on.
std::string losses(int ranks, const std::string& schedule, const std::string& backend = "auto") {
  const ChildResult result = run({bin("trireme"), "launch", "-n", text(ranks), "--no-prefix", "--",
                                  bin("example_own_pipeline"), schedule, "50", backend},
                                 {}, 60);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

TEST(PipelineProcesses, LossesAreThoseOfOneRankOverSharedMemoryAndOverSockets) {
  const std::string one = losses(1, "gpipe");
  EXPECT_THAT(one, testing::HasSubstr("step 50: loss 0."));
  EXPECT_EQ(losses(2, "1f1b"), one);
  EXPECT_EQ(losses(4, "zb-h1"), one);
  EXPECT_EQ(losses(4, "interleaved-1f1b", "gloo"), one);
}

TEST(ShardedLoopProcesses, LossesAreThoseOfOneRankOverSharedMemoryAndOverSockets) {
  const auto losses = [](int ranks, const std::string& backend) {
    const ChildResult result = run({bin("trireme"), "launch", "-n", text(ranks), "--no-prefix", "--",
                                    bin("example_own_loop_sharded"), "50", backend},
                                   {}, 60);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const std::string one = losses(1, "auto");
  EXPECT_THAT(one, testing::HasSubstr("step 50: loss 0."));
  EXPECT_EQ(losses(2, "auto"), one);
  EXPECT_EQ(losses(3, "gloo"), one);
}

TEST(PipelineProcesses, ResNet50RunsNaiveAndPipelinedOnTwoRanks) {
  const ChildResult result = run({bin("trireme"), "launch", "-n", "2", "--no-prefix", "--",
                                  bin("example_resnet50_two_stages"), "2", "4", "32"},
                                 {}, 60);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, testing::MatchesRegex("naive [0-9.]+ s, pipelined [0-9.]+ s\n"));
}

}  // namespace
}  // namespace trireme::test
