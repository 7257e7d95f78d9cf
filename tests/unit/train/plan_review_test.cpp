// An estimate compared with the run that followed it, and rates that are corrected by the difference.
#include "trireme/train/planner/plan_review.h"

#include <gmock/gmock.h>

#include "tests/unit/train/known_costs.h"
#include "trireme/base/error.h"
#include "trireme/train/run/internal/planned_run.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// The estimate of `config` in the form of a measurement of a run.
MeasuredStep as_predicted(const PlannedStep& plan, int pipeline_rank = 0) {
  const EstimateOfRank& rank = plan.ranks[static_cast<std::size_t>(pipeline_rank)];
  return {.pipeline_rank = pipeline_rank,
          .step_s = plan.step_s,
          .forward_s = rank.seconds.forward,
          .backward_s = rank.seconds.backward,
          .update_s = rank.seconds.update,
          .at_peak = rank.memory.at_peak};
}

class PlanReviews : public testing::Test {
 protected:
  const RunConfig config_ = without_clipping();
  const MeasuredForms measured_ = {known_costs(config_, 2)};
  const PlannedStep plan_ = plan_step(config_, 2, measured_);
};

TEST_F(PlanReviews, AccurateEstimateNamesNoTerm) {
  const PlanReview review = review_plan(plan_, {as_predicted(plan_), as_predicted(plan_)});
  EXPECT_EQ(review.wrong_term(), nullptr);
  for (const ReviewedTerm& term : review.times) EXPECT_NEAR(term.error(), 0, 1e-9) << term.name;
  for (const ReviewedTerm& kind : review.memory) EXPECT_NEAR(kind.error(), 0, 1e-9) << kind.name;
  EXPECT_THAT(describe(review), Not(HasSubstr("most wrong")));
  EXPECT_EQ(to_text(corrected(measured_, resolve_plan(config_, 2), review)), to_text(measured_));
}

TEST_F(PlanReviews, NamesWrongTermOnBusiestRank) {
  MeasuredStep slow = as_predicted(plan_);
  slow.backward_s *= 1.5;
  slow.step_s += slow.backward_s / 3;
  const PlanReview review = review_plan(plan_, {as_predicted(plan_), slow});
  ASSERT_NE(review.wrong_term(), nullptr);
  EXPECT_EQ(review.wrong_term()->name, "backward");
  EXPECT_EQ(review.rank, 1);
  EXPECT_THAT(describe(review), AllOf(HasSubstr("on rank 1 backward was most wrong"), HasSubstr("(-33 %)")));
}

TEST_F(PlanReviews, NextEstimateHasRatesOfRun) {
  MeasuredStep slow = as_predicted(plan_);
  slow.step_s += 0.5 * slow.backward_s + slow.update_s;
  slow.backward_s *= 1.5;
  slow.update_s *= 2;
  const ParallelPlan plan = resolve_plan(config_, 2);
  const MeasuredForms learnt = corrected(measured_, plan, review_plan(plan_, {slow, slow}));
  const PlannedStep again = plan_step(config_, 2, learnt);
  EXPECT_NEAR(again.step_s, slow.step_s, 1e-9);
  EXPECT_NEAR(again.ranks[0].seconds.backward, slow.backward_s, 1e-9);
  EXPECT_NEAR(again.ranks[0].seconds.update, slow.update_s, 1e-9);
}

TEST_F(PlanReviews, WaitingChangesExchangeRatesWithoutPipelineOnly) {
  MeasuredStep slow = as_predicted(plan_);
  slow.step_s += plan_.ranks[0].seconds.exchange;
  const ParallelPlan plan = resolve_plan(config_, 2);
  const MeasuredForms learnt = corrected(measured_, plan, review_plan(plan_, {slow, slow}));
  EXPECT_NEAR(learnt[0].exchanges.all_reduce.unit_s, 2 * measured_[0].exchanges.all_reduce.unit_s, 1e-12);

  RunConfig config = config_;
  config.parallel.pipeline = 2;
  config.parallel.microbatches = 4;
  const PlannedStep stages = plan_step(config, 2, measured_);
  MeasuredStep first = as_predicted(stages, 0), second = as_predicted(stages, 1);
  first.step_s = second.step_s = 2 * stages.step_s;
  const MeasuredForms same =
      corrected(measured_, resolve_plan(config, 2), review_plan(stages, {first, second}));
  EXPECT_EQ(to_text(same), to_text(measured_)) << "a bubble is no rate";
}

TEST_F(PlanReviews, LinesOfAllFormsLearnTogether) {
  RunConfig parts = config_;
  parts.parallel.tensor = 2;
  const MeasuredForms forms = {measured_[0], known_costs(parts, 2)};
  MeasuredStep slow = as_predicted(plan_);
  slow.step_s += plan_.ranks[0].seconds.exchange + slow.update_s;
  slow.update_s *= 2;
  const MeasuredForms learnt = corrected(forms, resolve_plan(config_, 2), review_plan(plan_, {slow, slow}));
  EXPECT_EQ(learnt[1].update.unit_s, learnt[0].update.unit_s);
  EXPECT_EQ(learnt[1].exchanges.all_reduce.unit_s, learnt[0].exchanges.all_reduce.unit_s);
  EXPECT_GT(learnt[1].update.unit_s, forms[1].update.unit_s);
  EXPECT_EQ(learnt[1].costs[0].layers[0].time.backward_s, forms[1].costs[0].layers[0].time.backward_s)
      << "the other form was not run";
}

TEST_F(PlanReviews, WaitingForDataIsNoStepTime) {
  const MeasuredStep step = mean_step({.steps_s = 10, .data_wait_s = 4, .forward_s = 2, .steps = 2}, 1, {});
  EXPECT_DOUBLE_EQ(step.step_s, 3);
  EXPECT_DOUBLE_EQ(step.forward_s, 1);
  EXPECT_EQ(step.pipeline_rank, 1);
}

TEST_F(PlanReviews, DisturbedRunChangesRateFourfoldAtMost) {
  MeasuredStep slow = as_predicted(plan_);
  slow.step_s += 99 * slow.backward_s;
  slow.backward_s *= 100;
  const MeasuredForms learnt =
      corrected(measured_, resolve_plan(config_, 2), review_plan(plan_, {slow, slow}));
  EXPECT_NEAR(learnt[0].costs[0].layers[0].time.backward_s,
              4 * measured_[0].costs[0].layers[0].time.backward_s, 1e-12);
}

TEST_F(PlanReviews, RejectsRanksThatPlanLacks) {
  MeasuredStep other = as_predicted(plan_);
  other.pipeline_rank = 1;
  EXPECT_THROW(review_plan(plan_, {other}), InvalidArgument);
  EXPECT_THROW(review_plan(plan_, {}), InvalidArgument);
}

}  // namespace
}  // namespace trireme::train
