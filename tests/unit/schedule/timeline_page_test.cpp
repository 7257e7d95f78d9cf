#include "trireme/schedule/timeline_page.h"

#include <gmock/gmock.h>

#include "trireme/base/error.h"
#include "trireme/schedule/schedule_table.h"

namespace trireme::schedule {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TimedAction did(const std::string& action, double start_s, double end_s) {
  return {parse_action(action), start_s, end_s};
}

/// Two ranks and two micro-batches with simple times. The timeline begins 5 s after the origin.
TimedRanks measured() {
  return {{did("0F0", 5.0, 5.1), did("0F1", 5.1, 5.3), did("0SEND_F0", 5.3, 5.4), did("0B0", 5.4, 5.6),
           did("0B1", 5.8, 6.0)},
          {did("1F0", 5.1, 5.2), did("1B0", 5.2, 5.4), did("1F1", 5.4, 5.5), did("1B1", 5.5, 5.8)}};
}

Program program() { return make_schedule("1f1b", {.num_ranks = 2, .num_microbatches = 2}); }

TimelinePage page() {
  return {.title = "two <stages>",
          .remark = "a & b",
          .program = program(),
          .costs = mean_costs(program(), {measured()}),
          .steps = {{.name = "step \"12\"", .ranks = measured()}}};
}

TEST(TimedActions, CostsAreMeanMeasuredTimes) {
  const Costs costs = mean_costs(program(), {measured()});
  ASSERT_EQ(costs.stages.size(), 2u);
  EXPECT_NEAR(costs.stages[0].forward, 0.15, 1e-9);
  EXPECT_NEAR(costs.stages[0].backward_input, 0.2, 1e-9);
  EXPECT_EQ(costs.stages[0].backward_weight, 0);
  EXPECT_NEAR(costs.stages[1].forward, 0.1, 1e-9);
  EXPECT_NEAR(costs.stages[1].backward_input, 0.25, 1e-9);
}

TEST(TimedActions, WeightGradientHasItsCost) {
  const Program split = make_schedule("zb-h1", {.num_ranks = 2, .num_microbatches = 2});
  const Costs costs = mean_costs(split, {{{did("0I0", 0, 1), did("0W0", 1, 4)}, {did("1B0", 0, 2)}}});
  EXPECT_EQ(costs.stages[0].backward_input, 1);
  EXPECT_EQ(costs.stages[0].backward_weight, 3);
  EXPECT_EQ(costs.stages[1].backward_weight, 0);
}

TEST(TimedActions, ABubbleIsWhereNothingIsComputed) {
  // 1 s from the first begin to the last end. Transfers do not count as computation.
  EXPECT_THAT(bubble_shares(measured()), ElementsAre(DoubleNear(0.3, 1e-9), DoubleNear(0.3, 1e-9)));
  EXPECT_THAT(bubble_shares({{did("0F0", 0, 1), did("0B0", 0, 1)}, {}}), ElementsAre(0, 1));
  EXPECT_THAT(bubble_shares({{}, {}}), ElementsAre(0, 0));
}

TEST(TimedActions, OfASimulationAreItsComputations) {
  const Program order = program();
  const TimedRanks ranks = timed(order, simulate(order, {.stages = {{1, 2, 0}}}));
  ASSERT_EQ(ranks[1].size(), 4u);
  EXPECT_EQ(to_text(ranks[1][1].action), "1B0");
  EXPECT_EQ(ranks[1][1].start_s, 2);
  EXPECT_EQ(ranks[1][1].end_s, 4);
}

TEST(TimelinePage, DrawsMeasuredBoxesFromStepBegin) {
  const std::string html = timeline_page(page());
  EXPECT_THAT(html, HasSubstr("data-s=\"100.0000\" data-e=\"300.0000\" data-m=\"1\"><rect"));  // 0F1
  EXPECT_THAT(html, HasSubstr("<title>0F1: 200 ms, from 100 ms</title>"));
  EXPECT_THAT(html, HasSubstr("<title>1B1: 300 ms, from 500 ms</title>"));
  EXPECT_THAT(html, Not(HasSubstr("SEND_F0")));
}

TEST(TimelinePage, DrawsThePlanWithTheMeanTimes) {
  const std::string html = timeline_page(page());
  // 0F0 0F1 | 1F0 1B0 ...: the first backward of stage 1 begins after both forwards before it.
  EXPECT_THAT(html, HasSubstr("<title>0F1: 150 ms, from 150 ms</title>"));
  EXPECT_THAT(html, HasSubstr("<title>1B0: 250 ms, from 250 ms</title>"));
  EXPECT_THAT(html, HasSubstr("<td>planned</td>"));
}

TEST(TimelinePage, ScalesBoxesToTheLongestRow) {
  // The measured time is 1 s and the plan is shorter. 1 s is 1004 units from 130 on, so half of it begins at
  // 632.
  TimelinePage quick_plan = page();
  quick_plan.costs = {.stages = {{0.1, 0.1, 0}}};
  EXPECT_THAT(timeline_page(quick_plan),
              HasSubstr("data-s=\"500.0000\" data-e=\"800.0000\" data-m=\"1\"><rect x=\"632\""));
}

TEST(TimelinePage, TellsTheBubblesOfEveryRow) {
  EXPECT_THAT(timeline_page(page()), HasSubstr("<td>1000 ms</td><td>30.0 %</td><td>30.0 %</td>"));
}

TEST(TimelinePage, NumbersOnlyBoxesThatHaveRoom) {
  TimelinePage narrow = page();
  narrow.steps[0].ranks[0][0] = did("0F0", 5.0, 5.001);
  EXPECT_THAT(timeline_page(narrow), HasSubstr("style=\"display:none\">0</text>"));
  EXPECT_THAT(timeline_page(page()), Not(HasSubstr("style=\"display:none\">")));
}

TEST(TimelinePage, OmitsStepWithoutTime) {
  TimelinePage with_step = page();
  with_step.steps[0].ranks[0].push_back(did("0STEP", 6.0, 6.000001));
  EXPECT_THAT(timeline_page(with_step), Not(HasSubstr("0STEP")));
  with_step.steps[0].ranks[0].back().end_s = 6.2;
  EXPECT_THAT(timeline_page(with_step), HasSubstr("<title>0STEP: 200 ms, from 1000 ms</title>"));
}

TEST(TimelinePage, LateUpdateIsInAxisAndTable) {
  TimelinePage of_update = page();
  of_update.steps[0].ranks[1].push_back(did("1STEP", 5.8, 9.0));
  of_update.stages = {"wte to h.1", "h.2 to <head>"};
  const std::string html = timeline_page(of_update);
  EXPECT_THAT(html, HasSubstr("data-end=\"4000.0000\""));
  EXPECT_THAT(html, HasSubstr("<td>step &quot;12&quot;</td><td>4000 ms</td><td>30.0 %</td>"))
      << "no bubble is longer for it";
  EXPECT_THAT(html, HasSubstr("<td>1</td><td>h.2 to &lt;head&gt;</td>"));
}

TEST(TimelinePage, ReplicasAreBesidePlanOfStage) {
  TimelinePage twice = page();
  const TimedRanks once = measured();
  twice.steps[0].ranks = {once[0], once[0], once[1], once[1]};
  const std::string html = timeline_page(twice);
  EXPECT_THAT(html, HasSubstr("4 ranks, 2 stages, 2 micro-batches"));
  EXPECT_THAT(html, HasSubstr(">rank 3</text>"));
  std::size_t planned = 0, at = 0;
  while ((at = html.find("<title>1F0: 100 ms, from 150 ms", at)) != std::string::npos) ++at, ++planned;
  EXPECT_EQ(planned, 2u) << "of the second stage, for both of its replicas";
}

TEST(TimelinePage, FollowsColourSchemeOfSystem) {
  const std::string html = timeline_page(page());
  EXPECT_THAT(html, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(html, HasSubstr("class=\"lane\"/>"));
  EXPECT_THAT(html, Not(HasSubstr("fill=\"#eef1f4\""))) << "a colour of light pages alone";
}

TEST(TimelinePage, NeedsNothingFromOutsideAndEscapesText) {
  const std::string html = timeline_page(page());
  EXPECT_THAT(html, HasSubstr("<h1>two &lt;stages&gt;</h1>"));
  EXPECT_THAT(html, HasSubstr("step &quot;12&quot;"));
  EXPECT_THAT(html, HasSubstr("a &amp; b"));
  for (const char* from_outside : {"href", "src=", "http:", "https:", "@import", "url(h"})
    EXPECT_THAT(html, Not(HasSubstr(from_outside)));
}

TEST(TimelinePage, RejectsAStepOfOtherRanks) {
  TimelinePage wrong = page();
  wrong.steps[0].ranks.pop_back();
  EXPECT_THROW(timeline_page(wrong), InvalidArgument);
}

}  // namespace
}  // namespace trireme::schedule
