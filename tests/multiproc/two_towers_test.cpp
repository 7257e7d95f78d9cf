// A program whose batches are named tensors, one of which is padded, over real processes.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using testing::HasSubstr;

class TwoTowersExample : public testing::Test {
 protected:
  ChildResult on_ranks(int ranks, const std::string& command, std::vector<std::string> settings = {}) const {
    settings.insert(settings.begin(), "run.folder=" + folder_.path().string());
    std::vector<std::string> words = {bin("example_two_towers"), command, config_, "-n", text(ranks)};
    for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
    return run(words, {}, 120);
  }
  nlohmann::json trained(int ranks, const std::vector<std::string>& settings) const {
    const ChildResult result = on_ranks(ranks, "train", settings);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(read_file(folder_.path() / "two_towers" / "summary.json"));
  }

  const TemporaryFolder folder_;
  const std::string config_ = checkout("examples/two_towers.toml");
};

const std::vector<std::string> kCut = {"parallel.pipeline=2", "parallel.microbatches=2"};

TEST_F(TwoTowersExample, LearnsRankingOverRanksAndStages) {
  // With sgd, rounding errors are not amplified.
  const std::vector<std::string> small = {"train.epochs=1", "optimizer.name=sgd", "optimizer.lr=1"};
  const nlohmann::json one = trained(1, small);
  std::vector<std::string> cut = small;
  cut.insert(cut.end(), kCut.begin(), kCut.end());
  for (const int ranks : {2, 4}) {
    const nlohmann::json found = trained(ranks, cut);
    // 64 steps, each with another order of f32 rounding.
    EXPECT_NEAR(found["test_loss"], one["test_loss"], 1e-4);
    EXPECT_NEAR(found["test_reciprocal_rank"], one["test_reciprocal_rank"], 1e-2);
  }
  // The expected value for random ranks is (1 + 1/2 + ... + 1/8) / 8 = 0.34.
  EXPECT_GT(trained(2, {})["test_reciprocal_rank"], 0.7);
}

TEST_F(TwoTowersExample, IsVerified) {
  for (const bool cuts : {false, true}) {
    const ChildResult result = on_ranks(2, "verify", cuts ? kCut : std::vector<std::string>{});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("verify: 3 steps on 2 ranks and on one: equal"));
  }
}

TEST_F(TwoTowersExample, AsynchronousStagesAreRejectedBeforeRanksStart) {
  const ChildResult result = on_ranks(
      2, "train", {"parallel.pipeline=2", "parallel.schedule=pipedream-2bw", "parallel.microbatches=2"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, testing::AllOf(HasSubstr("those of data set searches vary"),
                                         testing::Not(HasSubstr("launch"))));
}

}  // namespace
}  // namespace trireme::test
