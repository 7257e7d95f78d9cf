#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/support/child_process.h"

namespace trireme::test {
namespace {

nlohmann::json profile(const std::vector<std::string>& settings) {
  std::vector<std::string> command = {bin("trireme"),
                                      "profile",
                                      checkout("examples/quick.toml"),
                                      "--json",
                                      "--repeats",
                                      "1",
                                      "--set",
                                      "train.global_batch=48",
                                      "--set",
                                      "train.accumulation=1"};
  for (const std::string& setting : settings) command.insert(command.end(), {"--set", setting});
  const ChildResult result = run(command);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.exit_code == 0 ? nlohmann::json::parse(result.out) : nlohmann::json();
}

TEST(ProfileCommand, MeasuresMicroBatchOfOneReplica) {
  EXPECT_EQ(profile({"parallel.pipeline=2", "parallel.microbatches=4"})["samples"], 12);
  EXPECT_EQ(profile({"parallel.pipeline=2", "parallel.microbatches=4", "parallel.data=3"})["samples"], 4);
}

TEST(ProfileCommand, ProfilesTensorParallelModel) {
  EXPECT_GT(profile({"parallel.tensor=2"})["layers"].size(), 1u);
}

}  // namespace
}  // namespace trireme::test
