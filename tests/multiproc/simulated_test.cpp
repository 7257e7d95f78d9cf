// examples/simulated.cpp: training on samples that threads generate during the run.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using testing::HasSubstr;

class SimulatedExample : public testing::Test {
 protected:
  ChildResult on_ranks(int ranks, const std::string& command, const std::vector<std::string>& words) const {
    std::vector<std::string> all = {bin("example_simulated"),
                                    command,
                                    checkout("examples/simulated.toml"),
                                    "-n",
                                    text(ranks),
                                    "--set",
                                    "run.folder=" + folder_.path().string()};
    all.insert(all.end(), words.begin(), words.end());
    return run(all, {}, 120);
  }
  double test_loss(int ranks, const std::vector<std::string>& words) const {
    const ChildResult result = on_ranks(ranks, "train", words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(read_file(folder_.path() / "simulated" / "summary.json"))["test_loss"];
  }

  const TemporaryFolder folder_;
};

TEST_F(SimulatedExample, LearnsEquallyWithAnyThreadsAndResumes) {
  const std::vector<std::string> short_run = {
      "--set", "train.epochs=1", "--set", "checkpoint.every_steps=20", "--set", "lr.schedule=constant"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), short_run.begin(), short_run.end());
    return more;
  };
  const double whole = test_loss(2, with({}));
  EXPECT_LT(whole, 0.5) << "unlearnt it is above 2";
  EXPECT_EQ(test_loss(2, with({"--set", "pendulum.threads=3"})), whole);
  test_loss(2, with({"--set", "train.max_steps=30"}));
  EXPECT_EQ(test_loss(2, with({"--set", "train.max_steps=0", "--resume"})), whole);
}

TEST_F(SimulatedExample, IsVerifiedOverPipelineStages) {
  const ChildResult result = on_ranks(2, "verify", {"--set", "parallel.pipeline=2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("verify: 3 steps on 2 ranks and on one: equal"));
}

}  // namespace
}  // namespace trireme::test
