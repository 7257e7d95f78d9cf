// A rank dies in the middle of a tensor-parallel or context-parallel run.

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

/// `mesh` is of 4 ranks. If a setting is given twice, the last value counts.
void expect_survivors_to_name(int victim, const std::vector<std::string>& mesh,
                              const char* first_evaluation = "step 50  test accuracy") {
  SCOPED_TRACE(text("rank ", victim, " of ", mesh.back()));
  const TemporaryFolder folder;
  std::vector<std::string> words = {bin("trireme-torch"), "train", checkout("examples/quick.toml")};
  std::vector<std::string> settings = {text("run.folder=", folder.path().string()),
                                       "train.epochs=100000",
                                       "train.accumulation=1",
                                       "parallel.tensor=2",
                                       "comm.torch_threads=1",
                                       "comm.timeout_s=30"};
  settings.insert(settings.end(), mesh.begin(), mesh.end());
  for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
  constexpr int kRanks = 4;
  auto ranks = start_all({.size = kRanks, .command = words});
  ASSERT_TRUE(ranks[0]->wait_for_output(first_evaluation, 60));
  ranks[static_cast<std::size_t>(victim)]->send_signal(SIGKILL);
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == victim) continue;
    const ChildResult result = ranks[static_cast<std::size_t>(rank)]->wait(60);
    EXPECT_EQ(result.exit_code, 3) << "rank " << rank << ": " << result.err;
    EXPECT_THAT(result.err, HasSubstr(text("rank ", victim))) << "rank " << rank;
  }
}

TEST(TensorFault, SurvivorsNameKilledRankOfLayer) {
  expect_survivors_to_name(1, {"parallel.data=2"});
  expect_survivors_to_name(2, {"parallel.microbatches=4", "parallel.pipeline=2"});
}

TEST(ContextFault, SurvivorsNameKilledRankOfRing) {
  expect_survivors_to_name(
      2,
      {"data.name=text", "data.path=" + checkout("LICENSE"), "data.block=32", "model.name=gpt",
       "model.layers=1", "model.width=16", "eval.every_steps=10", "parallel.tensor=1", "parallel.context=4"},
      "step 10  validation accuracy");
}

}  // namespace
}  // namespace trireme::test
