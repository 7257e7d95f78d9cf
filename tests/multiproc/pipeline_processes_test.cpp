// Pipelines over real processes: the example with a chain of its own.
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

}  // namespace
}  // namespace trireme::test
