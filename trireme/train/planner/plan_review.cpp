#include "trireme/train/planner/plan_review.h"

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::train {
namespace {

constexpr double kMaxFactor = 4;  ///< a larger error comes from a disturbed run, not from the estimate

constexpr const char *kForward = "forward", *kBackward = "backward", *kUpdate = "update",
                     *kRest = "exchanges and waiting";

double busy_s(const MeasuredStep& rank) { return rank.forward_s + rank.backward_s + rank.update_s; }

std::string term_in_words(const ReviewedTerm& term) {
  const auto ms = [](double seconds) { return std::round(1e5 * seconds) / 1e2; };
  const auto error = std::llround(100 * term.error());
  return text(ms(term.measured), " ms, ", ms(term.predicted), " predicted (", error > 0 ? "+" : "", error,
              " %)");
}

/// The correction factor for the rate of a term; 1 within the tolerance.
double factor_of(const PlanReview& review, const std::string& name) {
  const auto term = std::ranges::find(review.times, name, &ReviewedTerm::name);
  if (term == review.times.end() || term->predicted <= 0 || term->measured <= 0) return 1;
  if (std::abs(term->error()) <= PlanReview::kTolerance) return 1;
  return std::clamp(term->measured / term->predicted, 1 / kMaxFactor, kMaxFactor);
}

}  // namespace

const ReviewedTerm* PlanReview::wrong_term() const {
  if (std::abs(step.error()) <= kTolerance || times.empty()) return nullptr;
  return &*std::ranges::max_element(
      times, {}, [](const ReviewedTerm& term) { return std::abs(term.predicted - term.measured); });
}

PlanReview review_plan(const PlannedStep& predicted, const std::vector<MeasuredStep>& ranks) {
  require(!ranks.empty(), "a review needs the measured steps of all ranks, found none");
  const auto busiest = std::ranges::max_element(ranks, {}, busy_s);
  const auto of_plan = [&](int pipeline_rank) -> const EstimateOfRank& {
    require(pipeline_rank >= 0 && pipeline_rank < std::ssize(predicted.ranks), "a rank of pipeline rank ",
            pipeline_rank, " was measured, and the plan has ", predicted.ranks.size());
    return predicted.ranks[static_cast<std::size_t>(pipeline_rank)];
  };
  const SecondsOfRank& seconds = of_plan(busiest->pipeline_rank).seconds;
  PlanReview review{
      .rank = static_cast<int>(busiest - ranks.begin()),
      .step = {.name = "step", .predicted = predicted.step_s, .measured = busiest->step_s},
      .times = {{.name = kForward, .predicted = seconds.forward, .measured = busiest->forward_s},
                {.name = kBackward, .predicted = seconds.backward, .measured = busiest->backward_s},
                {.name = kUpdate, .predicted = seconds.update, .measured = busiest->update_s},
                {.name = kRest,
                 .predicted = seconds.exchange + seconds.overhead + seconds.idle,
                 .measured = std::max(0.0, busiest->step_s - busy_s(*busiest))}},
      .memory = {}};
  const auto largest =
      std::ranges::max_element(ranks, {}, [](const MeasuredStep& rank) { return rank.at_peak.total(); });
  const MemoryUse& forecast = of_plan(largest->pipeline_rank).memory.at_peak;
  for (std::size_t kind = 0; kind < kNumMemoryKinds; ++kind) {
    const auto predicted_bytes = static_cast<double>(forecast.bytes[kind]),
               measured_bytes = static_cast<double>(largest->at_peak.bytes[kind]);
    if (predicted_bytes > 0 || measured_bytes > 0)
      review.memory.push_back({.name = std::string(name_of(static_cast<MemoryKind>(kind))),
                               .predicted = predicted_bytes,
                               .measured = measured_bytes});
  }
  return review;
}

std::string describe(const PlanReview& review) {
  std::string words = text("a step took ", term_in_words(review.step));
  if (const ReviewedTerm* wrong = review.wrong_term())
    words += text("; on rank ", review.rank, " ", wrong->name, " was most wrong: ", term_in_words(*wrong));
  return words;
}

MeasuredForms corrected(MeasuredForms forms, const ParallelPlan& plan, const PlanReview& review) {
  const auto form = std::ranges::find(forms, model_key(plan), &Measurements::model);
  if (review.wrong_term() == nullptr || form == forms.end()) return forms;
  const double forward = factor_of(review, kForward), backward = factor_of(review, kBackward),
               update = factor_of(review, kUpdate);
  for (ModelUse& model : form->costs) {
    for (LayerUse& layer : model.layers) {
      LayerTime& time = layer.time;
      for (double* part : {&time.forward_s, &time.bare_forward_s, &layer.memory.kept.forward_s})
        *part *= forward;
      for (double* part :
           {&time.backward_s, &time.backward_input_s, &time.backward_weight_s, &time.recomputed_backward_s})
        *part *= backward;
    }
  }
  const auto scale = [](CostLine& line, double factor) {
    line.fixed_s *= factor;
    line.unit_s *= factor;
  };
  // All forms share these lines, as they are compared with each other.
  for (Measurements& each : forms) {
    const bool is_in_files = plan.offloads_state() && each.update_in_files.unit_s > 0;
    scale(is_in_files ? each.update_in_files : each.update, update);
  }
  if (plan.pipeline_ranks() > 1) return forms;  // waiting includes the bubble, which is not a rate
  const double exchanges = factor_of(review, kRest);
  for (Measurements& each : forms) {
    scale(each.overhead, exchanges);
    for (ExchangeCosts* costs : {&each.exchanges, &each.within_host}) {
      for (CostLine* line : {&costs->all_reduce, &costs->reduce_scatter, &costs->all_gather})
        scale(*line, exchanges);
      for (CodecCost& codec : costs->codecs) scale(codec.all_reduce, exchanges);
    }
  }
  return forms;
}

}  // namespace trireme::train
