// `trireme estimate` over processes. Costs that were measured in one mode estimate another mode. Other models
// are rejected.

#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"

namespace trireme::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

ChildResult estimate(const std::vector<std::string>& more) {
  std::vector<std::string> command = {bin("trireme"), "estimate", checkout("examples/quick.toml"), "-n", "2"};
  command.insert(command.end(), more.begin(), more.end());
  return run(command);
}

TEST(EstimateCommand, StagesFollowFromMeasuredCostsOfReplicas) {
  const TemporaryFolder folder;
  const std::string costs = (folder / "costs.json").string();
  const ChildResult measured = estimate({"--save", costs, "--json"});
  ASSERT_EQ(measured.exit_code, kExitOk) << measured.err;
  const auto replicas = nlohmann::json::parse(measured.out);
  EXPECT_GT(replicas.at("step_s"), 0);
  EXPECT_EQ(replicas.at("ranks_of_a_pipeline").size(), 1U);

  const ChildResult told = estimate({"--measurements", costs, "--json", "--set", "parallel.pipeline=2",
                                     "--set", "train.accumulation=1", "--set", "parallel.microbatches=4"});
  ASSERT_EQ(told.exit_code, 0) << told.err;
  const auto stages = nlohmann::json::parse(told.out);
  EXPECT_EQ(stages.at("ranks_of_a_pipeline").size(), 2U);
  EXPECT_EQ(stages.at("cuts").size(), 1U);
  for (const auto& rank : stages.at("ranks_of_a_pipeline")) {
    double seconds = 0;
    for (const char* part : {"forward_s", "backward_s", "update_s", "exchange_s", "idle_s"})
      seconds += rank.at(part).get<double>();
    EXPECT_NEAR(seconds, stages.at("step_s").get<double>(), 1e-9);
    EXPECT_GT(rank.at("peak_bytes").at("total"), 0);
  }
}

TEST(EstimateCommand, AnotherModelNamesKeyThatDiffers) {
  const TemporaryFolder folder;
  const std::string costs = (folder / "costs.json").string();
  ASSERT_EQ(estimate({"--save", costs}).exit_code, 0);
  const ChildResult told = estimate({"--measurements", costs, "--set", "model.hidden=[7]"});
  EXPECT_EQ(told.exit_code, kExitUsage);
  EXPECT_THAT(told.err, AllOf(HasSubstr("model.hidden = [7]"), HasSubstr("measure again")));
}

TEST(EstimateCommand, FileWithoutMeasurementsIsNamed) {
  const ChildResult told = estimate({"--measurements", checkout("VERSION")});
  EXPECT_EQ(told.exit_code, kExitData);
  EXPECT_THAT(told.err, HasSubstr("VERSION"));
}

}  // namespace
}  // namespace trireme::test
