// Data, a model and an objective of one's own in a program of one's own, over real processes.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

class AutoencoderExample : public testing::Test {
 protected:
  ChildResult example(int ranks, const std::string& command, const std::vector<std::string>& settings) const {
    std::vector<std::string> words = {bin("trireme"),
                                      "launch",
                                      "-n",
                                      text(ranks),
                                      "--no-prefix",
                                      "--",
                                      bin("example_autoencoder"),
                                      command,
                                      checkout("examples/autoencoder.toml"),
                                      "data.name=synthetic",
                                      "run.folder=" + folder_.path().string()};
    words.insert(words.end(), settings.begin(), settings.end());
    return run(words, {}, 120);
  }

  double test_loss(int ranks, const std::vector<std::string>& settings) const {
    const ChildResult result = example(ranks, "train", settings);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const auto summary = nlohmann::json::parse(read_file(folder_.path() / "autoencoder" / "summary.json"));
    EXPECT_TRUE(summary.contains("test_mean_absolute_error")) << summary;
    return summary["test_loss"];
  }

  TemporaryFolder folder_;
};

TEST_F(AutoencoderExample, LearnsAsMuchOverStagesAsOnOneRank) {
  // In sgd rounding stays rounding.
  const std::vector<std::string> small = {"train.epochs=1", "optimizer.name=sgd", "optimizer.lr=0.1"};
  const double one = test_loss(1, small);
  std::vector<std::string> cut = small;
  cut.insert(cut.end(), {"parallel.pipeline=2", "parallel.microbatches=2"});
  // 32 steps, in each of which f32 is rounded in another order.
  EXPECT_NEAR(test_loss(2, cut), one, 1e-4 * one);
  EXPECT_NEAR(test_loss(4, cut), one, 1e-4 * one);
}

TEST_F(AutoencoderExample, IsVerified) {
  for (const std::string stages : {"1", "2"}) {
    const ChildResult result = example(2, "verify", {"parallel.pipeline=" + stages});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, testing::HasSubstr("verified"));
  }
}

TEST_F(AutoencoderExample, RefusesAnObjectiveForClasses) {
  const ChildResult result =
      example(1, "train", {"objective.name=cross_entropy", "objective.metrics=[]", "checkpoint.best=none"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, testing::AllOf(testing::HasSubstr("Float of shape [1, 28, 28]"),
                                         testing::HasSubstr("expected Long of shape []")));
}

}  // namespace
}  // namespace trireme::test
