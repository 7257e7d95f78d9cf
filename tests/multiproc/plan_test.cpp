// `trireme plan FILE.toml` over processes. It measures once, and a run uses the printed plan.
#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"

namespace trireme::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class PlanOverRanks : public testing::Test {
 protected:
  ChildResult trireme(const std::vector<std::string>& words) const {
    std::vector<std::string> command = {"/usr/bin/env", "XDG_CACHE_HOME=" + (folder_ / "cache").string(),
                                        bin("trireme")};
    command.insert(command.end(), words.begin(), words.end());
    return run(command);
  }
  ChildResult plan(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"plan", checkout("examples/quick.toml"), "-n", "2"};
    words.insert(words.end(), more.begin(), more.end());
    return trireme(words);
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  const TemporaryFolder folder_;
};

TEST_F(PlanOverRanks, MeasuresOnceAndFindsTheSameAgain) {
  const ChildResult first = plan({"--json", "--save", path("costs.json"), "--page", path("plans.html")});
  ASSERT_EQ(first.exit_code, kExitOk) << first.err;
  const json found = json::parse(first.out);
  EXPECT_GT(found.at("plans").size(), 5U);
  EXPECT_THAT(read_file(path("plans.html")), AllOf(HasSubstr("</html>"), HasSubstr("Time against memory")));

  const ChildResult again = plan({"--json"});
  ASSERT_EQ(again.exit_code, kExitOk) << again.err;
  EXPECT_THAT(again.err, HasSubstr("--measure measures again"));
  EXPECT_EQ(json::parse(again.out).at("plans"), found.at("plans"));
  EXPECT_EQ(json::parse(plan({"--json", "--measurements", path("costs.json")}).out).at("plans"),
            found.at("plans"));

  const ChildResult other = plan({"--json", "--set", "train.clip_norm=0"});
  EXPECT_THAT(other.err, Not(HasSubstr("measured on this machine before"))) << "it decides the update's cost";
}

TEST_F(PlanOverRanks, TheFastestPlansAreRunOnRequest) {
  const ChildResult first = plan({"--check", "--json"});
  ASSERT_EQ(first.exit_code, kExitOk) << first.err;
  const json found = json::parse(first.out);
  const json& checked = found.at("checked");
  ASSERT_EQ(checked.size(), 3U);
  for (std::size_t i = 0; i < checked.size(); ++i) {
    EXPECT_EQ(checked[i].at("plan"), found.at("plans")[i].at("plan"));
    EXPECT_EQ(checked[i].at("step_s"), found.at("plans")[i].at("step_s"));
    EXPECT_GT(checked[i].at("measured_step_s"), 0.0);
    EXPECT_GT(checked[i].at("measured_tensor_bytes"), 0);
  }
  // Even with cached costs, ranks are started.
  const ChildResult again = plan({"--check"});
  ASSERT_EQ(again.exit_code, kExitOk) << again.err;
  EXPECT_THAT(again.err, HasSubstr("--measure measures again"));
  EXPECT_THAT(again.out, HasSubstr("checked: the fastest plans, run for some steps"));
  const ChildResult keys = plan({"--check", "--toml"});
  EXPECT_THAT(keys.out, HasSubstr("planned_step_s")) << keys.err;

  const ChildResult too_large = plan({"--check", "--memory", "0.0001"});
  EXPECT_EQ(too_large.exit_code, kExitOk) << too_large.err;
  EXPECT_THAT(too_large.out, AllOf(HasSubstr("no plan fits into"), Not(HasSubstr("checked:"))));
}

TEST_F(PlanOverRanks, ExplicitPlanSwitchesAutomaticPlanOff) {
  const std::string config = read_file(checkout("examples/quick.toml"));
  write_file_atomic(path("run.toml"), config + "\n[parallel]\nplan = \"auto\"\n");
  write_file_atomic(path("plan.toml"), "[parallel]\npipeline = 2\nmicrobatches = 2\n");
  const ChildResult result = trireme({"train", path("run.toml"), "-n", "2", "--plan", path("plan.toml"),
                                      "--set", "run.folder=" + folder_.path().string(), "--set",
                                      "run.name=named", "--set", "train.max_steps=3"});
  ASSERT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "named" / "plan.toml")) << "nothing was searched";
  EXPECT_THAT(read_file(folder_ / "named" / "config.toml"),
              AllOf(HasSubstr("pipeline = 2"), HasSubstr("plan = \"none\"")));
}

using SecurityPlans = PlanOverRanks;

TEST_F(SecurityPlans, ForeignFileIsReadUpToLimit) {
  const auto train = [&](const std::string& plan) {
    write_file_atomic(path("plan.toml"), plan);
    return trireme({"train", checkout("examples/quick.toml"), "-n", "2", "--plan", path("plan.toml"), "--set",
                    "train.max_steps=1", "--set", "run.name=named"});
  };
  const ChildResult moved = train(text("[run]\nfolder = \"", path("elsewhere"), "\"\n"));
  EXPECT_EQ(moved.exit_code, kExitUsage) << moved.err;
  EXPECT_THAT(moved.err, HasSubstr("the key 'run.folder' is not one that a planner decides"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "elsewhere"));
  const ChildResult large = train(std::string(5 << 20, '\n'));
  EXPECT_EQ(large.exit_code, kExitData) << large.err;
  EXPECT_THAT(large.err, HasSubstr("is not a plan: it has more than 4194304 bytes"));
}

TEST_F(PlanOverRanks, RanksOfHostShareItsMemory) {
  ASSERT_EQ(plan({"--save", path("costs.json")}).exit_code, kExitOk);
  const auto limit = [&] {
    return json::parse(plan({"--json", "--measurements", path("costs.json")}).out)
        .at("limit_bytes")
        .get<double>();
  };
  const double of_two = limit();
  json costs = json::parse(read_file(path("costs.json")));
  for (json& form : costs.at("forms")) form["ranks_of_host"] = 1;
  write_file_atomic(path("costs.json"), costs.dump());
  EXPECT_GT(limit(), 1.5 * of_two) << "each rank has a host of its own";
}

TEST_F(PlanOverRanks, TooLittleMemoryNamesSmallestPlan) {
  const ChildResult found = plan({"--memory", "0.001"});
  EXPECT_EQ(found.exit_code, kExitOk) << found.err;
  EXPECT_THAT(found.out, AllOf(HasSubstr("no plan fits into 1.0 MiB per rank"), HasSubstr("more on rank")));
  const ChildResult keys = plan({"--memory", "0.001", "--toml"});
  EXPECT_EQ(keys.exit_code, kExitUsage);
  EXPECT_THAT(keys.err, HasSubstr("no plan fits"));
}

}  // namespace
}  // namespace trireme::test
