// Pipelines and shards over real processes: the examples.
#include <gmock/gmock.h>

#include <string>

#include "tests/support/child_process.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

/// The output of rank 0: "step 10: loss 0.49..." and so on.
std::string losses(int ranks, const std::string& schedule, const std::string& backend = "auto") {
  const ChildResult result = run({bin("trireme"), "launch", "-n", text(ranks), "--no-prefix", "--",
                                  bin("example_own_pipeline"), schedule, "50", backend},
                                 {}, 60);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

TEST(PipelineProcesses, LossesMatchOneRankOverEachTransport) {
  const std::string one = losses(1, "gpipe");
  EXPECT_THAT(one, testing::HasSubstr("step 50: loss 0."));
  EXPECT_EQ(losses(2, "1f1b"), one);
  EXPECT_EQ(losses(4, "zb-h1"), one);
  EXPECT_EQ(losses(4, "interleaved-1f1b", "gloo"), one);
}

TEST(PipelineProcesses, SequentialInPipeLearnsOnAnyRanks) {
  const auto printed = [](int ranks) {
    const ChildResult result =
        run({bin("trireme"), "launch", "-n", text(ranks), "--no-prefix", "--", bin("example_own_pipe"), "50"},
            {}, 60);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const std::string one = printed(1);
  EXPECT_THAT(one, testing::HasSubstr("evaluation: loss 0."));
  EXPECT_EQ(printed(3), one);
}

TEST(PipelineProcesses, AsynchronousStagesLearnOverEachSchedule) {
  for (const std::string schedule : {"pipedream", "pipedream-2bw", "1f1b-rr"}) {
    const ChildResult result = run({bin("trireme"), "launch", "-n", "3", "--no-prefix", "--",
                                    bin("example_own_pipeline_async"), schedule, "400"},
                                   {}, 60);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const auto loss_at = [&](const std::string& update) {
      const std::string words = "update " + update + ": loss ";
      const std::size_t at = result.out.find(words);
      return at == std::string::npos ? -1.0 : std::stod(result.out.substr(at + words.size()));
    };
    // The mean square of the target is 0.43: the loss of a model that has learned nothing.
    const double loss = loss_at("400");
    EXPECT_GT(loss, 0) << result.out;
    EXPECT_LT(loss, 0.25) << schedule << "\n" << result.out;
  }
}

TEST(ShardedLoopProcesses, LossesMatchOneRankOverEachTransport) {
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

TEST(PipelineProcesses, ResNet50RunsNaiveAndPipelined) {
  const ChildResult result = run({bin("trireme"), "launch", "-n", "2", "--no-prefix", "--",
                                  bin("example_resnet50_two_stages"), "2", "4", "32"},
                                 {}, 60);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, testing::MatchesRegex("naive [0-9.]+ s, pipelined [0-9.]+ s\n"));
}

}  // namespace
}  // namespace trireme::test
