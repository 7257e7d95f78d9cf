// The example program of docs/activation-memory.md.
#include <gmock/gmock.h>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"

namespace trireme::test {
namespace {

TEST(CheckpointedExample, RecomputesBlocksWithGradientsOfPlainProgram) {
  const ChildResult result = run({bin("example_checkpointed")}, {}, 60);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, testing::HasSubstr("plain: 4 runs of a block"));
  EXPECT_THAT(result.out,
              testing::HasSubstr("checkpointed: 8 runs of a block, largest difference of a gradient 0"));
}

}  // namespace
}  // namespace trireme::test
