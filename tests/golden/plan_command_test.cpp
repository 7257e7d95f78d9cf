// `trireme plan`: its output and its rejections.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/files.h"

namespace trireme::test {
namespace {

const std::string kFolder = checkout("tests/golden/");

ChildResult run_plan(std::vector<std::string> options) {
  options.insert(options.begin(), {bin("trireme"), "plan"});
  return run(options);
}

TEST(PlanCommand, PrintsTheGoldenTable) {
  const auto result =
      run_plan({"--profile", kFolder + "plan_vgg16.csv", "--workers", "4,4", "--bandwidth", "1e10,1.25e9"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, read_file(kFolder + "cli_plan.txt"));
}

TEST(PlanCommand, JsonHasThePlan) {
  const auto result = run_plan({"--profile", kFolder + "plan_vgg16.csv", "--workers", "4", "--bandwidth",
                                "1e9", "--straight", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto report = nlohmann::json::parse(result.out);
  EXPECT_EQ(report.at("method"), "pipedream");
  EXPECT_NEAR(report.at("pipeline_time_s").get<double>(), 0.21645, 1e-9);
  EXPECT_NEAR(report.at("data_parallel_time_s").get<double>(), 0.583206382, 1e-9);
  ASSERT_EQ(report.at("stages").size(), 4u);
  for (const auto& stage : report.at("stages")) {
    EXPECT_EQ(stage.at("replicas"), 1);
    EXPECT_EQ(stage.at("time_s"), stage.at("compute_time_s"));
  }
  EXPECT_EQ(report.at("stages").front().at("first_state"), 0);
  EXPECT_EQ(report.at("stages").back().at("last_state"), 39);
  EXPECT_EQ(report.at("stages").back().at("ends_behind"), "node41");
}

/// Two layers of 4 ms each with 1 MB of parameters. An activation of 1 KB crosses the cut.
class PlannedSteps : public testing::Test {
 protected:
  PlannedSteps() {
    write_file_atomic(profile_,
                      "state,antichain,cum_compute_s,cum_activation_bytes,cum_parameter_bytes,"
                      "output_activation_bytes,predecessor_states\n0,a,0.004,1,1000000,1000,\n"
                      "1,b,0.008,2,2000000,1000,0\n");
  }
  nlohmann::json steps(const std::string& bandwidth, const std::string& microbatches) {
    const ChildResult result = run_plan({"--profile", profile_.string(), "--workers", "2", "--bandwidth",
                                         bandwidth, "--microbatches", microbatches, "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out).at("steps");
  }
  TemporaryFolder folder_;
  const std::filesystem::path profile_ = folder_ / "two.csv";
};

TEST_F(PlannedSteps, CountFlushOfPipelineBesideDataParallelism) {
  // Four micro-batches: 2 x 8 ms on each replica, compared with (4 + 2 - 1) x 4 ms through two stages.
  const nlohmann::json fast = steps("1e15", "4");
  ASSERT_EQ(fast.size(), 2U);
  EXPECT_EQ(fast[0].at("pipeline"), 1) << "no flush";
  EXPECT_NEAR(fast[0].at("step_s").get<double>(), 0.016, 1e-6);
  EXPECT_EQ(fast[1].at("pipeline"), 2);
  EXPECT_NEAR(fast[1].at("step_s").get<double>(), 0.020, 1e-6);
  EXPECT_EQ(fast[1].at("cuts"), nlohmann::json({1}));
  // 2 MB take 4 (2 - 1) / 2 x 2 MB / (0.2 GB/s) = 20 ms. A backward hides little of that.
  const nlohmann::json slow = steps("2e8", "4");
  EXPECT_EQ(slow[0].at("pipeline"), 2);
  EXPECT_LT(slow[0].at("step_s").get<double>(), 0.021);
}

TEST_F(PlannedSteps, ArePrintedAsKeysOfAConfiguration) {
  const ChildResult result = run_plan({"--profile", profile_.string(), "--workers", "2", "--bandwidth", "2e8",
                                       "--microbatches", "8", "--toml"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out.substr(0, result.out.find("planned_step_s")),
            "# trireme plan: a step of 8 micro-batches of the profile's size, on 2 "
            "ranks\n[train]\naccumulation = 1\n\n"
            "[parallel]\ndata = 1\npipeline = 2\nschedule = \"1f1b\"\nmicrobatches = 8\ncuts = [1]\n");
  const ChildResult levels =
      run_plan({"--profile", profile_.string(), "--workers", "2,2", "--bandwidth", "1e9,1e8", "--toml"});
  EXPECT_EQ(levels.exit_code, 2);
  const ChildResult endless = run_plan(
      {"--profile", profile_.string(), "--workers", "2", "--bandwidth", "1e9", "--schedule", "pipedream"});
  EXPECT_EQ(endless.exit_code, 2);
  EXPECT_NE(endless.err.find("is never flushed"), std::string::npos) << endless.err;
}

TEST(PlanCommand, RejectsBadInputInOneLine) {
  const std::string vgg16 = kFolder + "plan_vgg16.csv";
  const auto refused = [](const std::vector<std::string>& options, int exit_code,
                          const std::string& message) {
    const auto result = run_plan(options);
    EXPECT_EQ(result.exit_code, exit_code) << message;
    EXPECT_EQ(result.err, "trireme: error: " + message + "\n");
  };
  refused({}, 2, "expected a run's configuration (trireme plan FILE.toml -n N), or --profile FILE.csv");
  refused({"--profile", vgg16, "--workers", "4"}, 2,
          "trireme plan: --profile requires --bandwidth; see: trireme plan --help");
  refused({"--profile", vgg16, "--workers", "4,2", "--bandwidth", "1e9"}, 2,
          "found 2 level(s) of workers ('4,2') and 1 bandwidth(s) ('1e9'); expected one bandwidth per level, "
          "innermost first");
  refused({"--profile", vgg16, "--workers", "0", "--bandwidth", "1e9"}, 2,
          "level 1 has 0 workers; expected at least 1");
  refused({"--profile", vgg16, "--workers", "4", "--bandwidth", "1e9", "--method", "pipdream"}, 2,
          "unknown partitioning method 'pipdream' (did you mean 'pipedream'?)");
  refused({"--profile", vgg16, "--workers", "41", "--bandwidth", "1e9", "--straight"}, 2,
          "one worker per stage makes 41 stages, but the profile has 40 layers; use fewer workers, or "
          "replicas (pipedream, not straight)");
  const std::string answers = kFolder + "cli_plan.txt";
  const auto result = run_plan({"--profile", answers, "--workers", "4", "--bandwidth", "1e9"});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_EQ(result.err.find("trireme: error: " + answers + ": line 1: found 'stage  states"), 0u)
      << result.err;
}

}  // namespace
}  // namespace trireme::test
