// A program with user-defined data and model, and the whole command line, over real processes.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class AutoencoderExample : public testing::Test {
 protected:
  ChildResult example(std::vector<std::string> words, const std::vector<std::string>& settings = {}) const {
    words.insert(words.begin(), bin("example_autoencoder"));
    for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
    return run(words, {}, 120);
  }
  ChildResult on_ranks(int ranks, const std::string& command, std::vector<std::string> settings = {}) const {
    settings.insert(settings.begin(), {"images.of=synthetic", "run.folder=" + folder_.path().string()});
    return example({command, config_, "-n", text(ranks)}, settings);
  }

  double test_loss(int ranks, const std::vector<std::string>& settings) const {
    const ChildResult result = on_ranks(ranks, "train", settings);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const auto summary = nlohmann::json::parse(read_file(folder_.path() / "autoencoder" / "summary.json"));
    EXPECT_TRUE(summary.contains("test_mean_absolute_error")) << summary;
    return summary["test_loss"];
  }

  const TemporaryFolder folder_;
  const std::string config_ = checkout("examples/autoencoder.toml");
};

TEST_F(AutoencoderExample, LearnsEquallyOverStagesAndOneRank) {
  // With sgd, rounding errors are not amplified.
  const std::vector<std::string> small = {"train.epochs=1", "optimizer.name=sgd", "optimizer.lr=0.1"};
  const double one = test_loss(1, small);
  std::vector<std::string> cut = small;
  cut.insert(cut.end(), {"parallel.pipeline=2", "parallel.microbatches=2"});
  // 32 steps, each with another order of f32 rounding.
  EXPECT_NEAR(test_loss(2, cut), one, 1e-4 * one);
  EXPECT_NEAR(test_loss(4, cut), one, 1e-4 * one);
}

TEST_F(AutoencoderExample, IsVerified) {
  for (const std::string stages : {"1", "2"}) {
    const ChildResult result = on_ranks(2, "verify", {"parallel.pipeline=" + stages});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("verify: 3 steps on 2 ranks and on one: equal"));
  }
}

TEST_F(AutoencoderExample, OwnKeysAreStrictRecordedAndResumed) {
  const std::vector<std::string> small = {"train.epochs=1", "checkpoint.every_steps=10",
                                          "autoencoder.code=4"};
  EXPECT_EQ(on_ranks(2, "train", small).exit_code, 0);
  EXPECT_THAT(
      read_file(folder_.path() / "autoencoder" / "config.toml"),
      AllOf(HasSubstr("[autoencoder]\nhidden = 128\ncode = 4\n"), HasSubstr("[images]\nof = \"synthetic\"")));
  const std::vector<std::string> where = {"images.of=synthetic", "run.folder=" + folder_.path().string(),
                                          "checkpoint.every_steps=10"};
  const ChildResult other = example({"train", config_, "--resume"}, where);
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("autoencoder.code was 4 and is now 32; set it back"));
  const ChildResult unknown = on_ranks(2, "train", {"autoencoder.cod=4"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_EQ(
      unknown.err,
      "example_autoencoder: error: --set autoencoder.cod=4: unknown key 'autoencoder.cod' (did you mean "
      "'autoencoder.code'?)\n");
}

TEST_F(AutoencoderExample, RejectsClassObjectiveBeforeRanksStart) {
  const ChildResult result =
      on_ranks(2, "train", {"objective.name=cross_entropy", "objective.metrics=[]", "checkpoint.best=none"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("Float of shape [1, 28, 28]"),
                                HasSubstr("expected Long of shape []"), testing::Not(HasSubstr("launch"))));
}

TEST_F(AutoencoderExample, HasTheOtherCommandsForItsTypes) {
  const std::string profile = (folder_.path() / "profile.csv").string();
  const ChildResult profiled =
      example({"profile", config_, "--repeats", "1", "--output", profile}, {"images.of=synthetic"});
  EXPECT_EQ(profiled.exit_code, 0) << profiled.err;
  const ChildResult planned = example({"plan", "--profile", profile, "--workers", "2", "--bandwidth", "1e9"});
  EXPECT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_EQ(on_ranks(2, "train",
                     {"train.max_steps=6", "parallel.pipeline=2", "parallel.microbatches=2",
                      "run.timeline=timeline.html", "run.trace=trace.json"})
                .exit_code,
            0);
  for (const char* file : {"timeline.html", "trace.json", "report.html"})
    EXPECT_TRUE(std::filesystem::exists(folder_.path() / "autoencoder" / file)) << file;
  EXPECT_THAT(example({"runs", folder_.path().string()}).out, HasSubstr("autoencoder/images"));
  const ChildResult inspected = example({"checkpoint", "inspect", (folder_.path() / "autoencoder").string()});
  EXPECT_EQ(inspected.exit_code, 0) << inspected.err;
  EXPECT_EQ(run({bin("example_autoencoder"), "launch", "-n", "2", "--", "true"}).exit_code, 0);
}

TEST_F(AutoencoderExample, BearsItsOwnName) {
  const std::string help = example({"--help"}).out, of_train = example({"train", "--help"}).out;
  EXPECT_THAT(help, HasSubstr("Usage: example_autoencoder COMMAND"));
  EXPECT_THAT(of_train,
              AllOf(HasSubstr("Usage: example_autoencoder train"), testing::Not(HasSubstr("  trireme "))));
  EXPECT_THAT(example({"completion", "bash"}).out, HasSubstr("complete -o default -F _example_autoencoder"));
  EXPECT_THAT(example({"--version"}).out, testing::StartsWith("example_autoencoder, trireme "));
  EXPECT_THAT(example({"trian"}).err,
              HasSubstr("example_autoencoder: error: there is no command 'trian' (did you mean 'train'?)"));
}

}  // namespace
}  // namespace trireme::test
