// The command-line messages of `trireme verify` about what it did not verify.

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"

namespace trireme::test {
namespace {

using testing::HasSubstr;
using testing::Not;

ChildResult verify(const std::vector<std::string>& settings, std::vector<std::string> options = {}) {
  std::vector<std::string> words = {bin("trireme"), "verify", checkout("examples/quick.toml"), "-n", "2"};
  words.insert(words.end(), options.begin(), options.end());
  for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
  return run(words, {}, 120);
}

TEST(VerifyCommand, RejectsAsynchronousScheduleBeforeStart) {
  const ChildResult refused =
      verify({"parallel.pipeline=2", "parallel.schedule=pipedream", "train.accumulation=1"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("older weights than one rank would"));
  EXPECT_THAT(refused.err, Not(HasSubstr("launch"))) << "no launcher has started a rank";
}

TEST(VerifyCommand, SaysWhyRoundedActivationsHaveNoBound) {
  const ChildResult refused = verify({"parallel.pipeline=2", "parallel.activation_compression=int8"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("there is no bound within which one rank has the same steps"));
  EXPECT_THAT(refused.err, HasSubstr("parallel.activation_compression = \"none\""));
}

TEST(VerifyCommand, OnlySkippedStepsFailVerification) {
  const std::vector<std::string> overflow = {"train.precision=fp16", "scaler.initial=1e18",
                                             "scaler.most=1e18"};
  const ChildResult words = verify(overflow);
  EXPECT_EQ(words.exit_code, 5) << words.err;
  EXPECT_THAT(words.out, HasSubstr("NOT VERIFIED"));
  EXPECT_THAT(words.out, HasSubstr("3 of 3 steps left out"));
  const ChildResult json = verify(overflow, {"--json"});
  EXPECT_EQ(json.exit_code, 5) << json.err;
  const auto verdict = nlohmann::json::parse(json.out);
  EXPECT_FALSE(verdict["equal"]);
  EXPECT_FALSE(verdict["verified"]);
  EXPECT_EQ(verdict["skipped_steps"], 3);
}

TEST(VerifyCommand, PrintsNumberOfStepsDone) {
  const ChildResult result = verify({"train.max_steps=2", "lr.warmup_steps=0"}, {"--steps", "9"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("verify: 2 steps (the run has no more; 9 were asked for)"));
}

}  // namespace
}  // namespace trireme::test
