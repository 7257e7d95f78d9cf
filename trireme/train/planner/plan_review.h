#pragma once
// A plan's estimate compared with the run that followed it, and measurements that have learned from the
// difference. Pure.

#include <string>
#include <vector>

#include "trireme/train/planner/plan_search.h"

namespace trireme::train {

/// A part of a step's time in seconds, or a kind of memory in bytes.
struct ReviewedTerm {
  std::string name;
  double predicted = 0, measured = 0;
  /// Of the measured value: 0.1 is 10 % too much.
  double error() const { return measured > 0 ? predicted / measured - 1 : 0; }
};

/// A rank's mean step without waiting for data, and its memory at the peak.
struct MeasuredStep {
  int pipeline_rank = 0;
  double step_s = 0;
  double forward_s = 0, backward_s = 0, update_s = 0;  ///< without waiting for others
  MemoryUse at_peak = {};
};

struct PlanReview {
  int rank = 0;                      ///< that worked longest
  ReviewedTerm step;                 ///< its time
  std::vector<ReviewedTerm> times;   ///< forward, backward, update; exchanges, waiting and overhead as one
  std::vector<ReviewedTerm> memory;  ///< by kind, of the rank that has most
  /// The term that is most wrong, where the step is more than kTolerance off; null: none.
  const ReviewedTerm* wrong_term() const;

  static constexpr double kTolerance = 0.05;  ///< of the measured step
};

/// `ranks`: all of the world. Throws InvalidArgument: there are none, or other ranks than the plan has.
PlanReview review_plan(const PlannedStep& predicted, const std::vector<MeasuredStep>& ranks);

/// "a step took 31.2 ms, 27.9 predicted (-11 %); backward 20.1 ms, 16.4 predicted (-18 %), is the term most
/// wrong".
std::string describe(const PlanReview& review);

/// The measurements with the rates that the run has shown, where the step was more than the tolerance off:
/// computation in the plan's form, the update in all forms, and without a pipeline the exchanges and the
/// overhead in all forms. A rate changes by a factor of 4 at most.
MeasuredForms corrected(MeasuredForms forms, const ParallelPlan& plan, const PlanReview& review);

}  // namespace trireme::train
