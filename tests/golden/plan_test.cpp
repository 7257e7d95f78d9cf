// Published plans as known answers. The profiles plan_vgg16.csv and plan_resnet50.csv and the answers in
// plan_pipedream_answers.csv are those of PipeDream's published optimizer (github.com/msr-fiddle/pipedream,
// profiler/*/profiles/*/graph.txt and optimizer/optimizer_graph_hierarchical.py). The profiles name the
// nearest predecessors of a state only. Times are compared and not cuts, because several cuts have the same
// time.

#include "trireme/plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/paths.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"

namespace trireme::plan {
namespace {

const std::string kFolder = test::checkout("tests/golden/");

struct Answer {
  std::string profile;
  PlanOptions options;
  double pipeline_time_s = 0;
  double data_parallel_time_s = 0;
};

std::vector<Answer> answers() {
  std::vector<Answer> answers;
  std::vector<std::string> lines = split(trim(read_file(kFolder + "plan_pipedream_answers.csv")), '\n');
  lines.erase(lines.begin());  // the header
  for (const std::string& line : lines) {
    const std::vector<std::string> cells = split(line, ',');
    Answer answer{.profile = cells.at(0),
                  .options = {},
                  .pipeline_time_s = std::stod(cells.at(4)),
                  .data_parallel_time_s = std::stod(cells.at(5))};
    answer.options.levels =
        parse_levels(join(split(cells.at(1), ' '), ","), join(split(cells.at(2), ' '), ","));
    answer.options.straight = cells.at(3) == "1";
    answers.push_back(answer);
  }
  return answers;
}

TEST(PlanGolden, PipedreamsAnswersAreFound) {
  const std::vector<Answer> known = answers();
  EXPECT_EQ(known.size(), 13u);
  double largest = 0;
  for (const Answer& answer : known) {
    const Profile profile = read_profile(kFolder + "plan_" + answer.profile + ".csv");
    const Plan plan = make_plan(profile, answer.options, "pipedream");
    EXPECT_NEAR(plan.pipeline_time_s, answer.pipeline_time_s, 1e-6) << answer.profile;
    EXPECT_NEAR(plan.data_parallel_time_s, answer.data_parallel_time_s, 1e-6) << answer.profile;
    largest = std::max({largest, std::abs(plan.pipeline_time_s - answer.pipeline_time_s),
                        std::abs(plan.data_parallel_time_s - answer.data_parallel_time_s)});
  }
  RecordProperty("largest_difference_s", text(largest));
}

TEST(PlanGolden, ProfilesHaveTheLayersOfTheirModels) {
  EXPECT_EQ(read_profile(kFolder + "plan_vgg16.csv").num_layers(), 40u);
  EXPECT_EQ(read_profile(kFolder + "plan_resnet50.csv").num_layers(), 176u);
}

// PipeDream, SOSP 2019, Table 1: VGG-16 on 16 GPUs and 10 Gb/s Ethernet is cut "15-1".
TEST(PlanGolden, CutsVggIntoFifteenAndOne) {
  const Plan plan =
      make_plan(read_profile(kFolder + "plan_vgg16.csv"), {.levels = {{16, 1.25e9}}}, "pipedream-links");
  ASSERT_EQ(plan.stages.size(), 2u);
  EXPECT_EQ(plan.stages[0].replicas, 15u);
  EXPECT_EQ(plan.stages[1].replicas, 1u);
}

}  // namespace
}  // namespace trireme::plan
