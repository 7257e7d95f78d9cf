#pragma once
// What a run learns of its gradients' noise, and what it makes of it: the gradient noise scale
// (train.noise_scale_every_steps) and AdaScale's gain of the learning rate (lr.scale_with_batch =
// "adascale"). Parts are the micro-batches of all ranks. A rank adds up the squares of its own gradients
// while backward brings them; the sums travel in the report of the step, so nothing is exchanged besides, and
// all ranks have the same numbers, whoever had which part. One per Trainer; one thread.

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "trireme/optim/ada_scale.h"
#include "trireme/optim/gradient_noise.h"
#include "trireme/optim/learning_rate.h"
#include "trireme/parallel/data/gradient_squares.h"
#include "trireme/parallel/pipeline/pipeline.h"
#include "trireme/train/parallel_plan.h"
#include "trireme/train/step_reports.h"

namespace trireme::train {

class NoiseScale {
 public:
  /// Null where the plan does not ask for it. `speaks_of_shares`: of the ranks that compute on the same
  /// micro-batches, one does. Throws InvalidArgument: stages that share a parameter.
  static std::unique_ptr<NoiseScale> make(const ParallelPlan& plan, const parallel::Pipeline& pipeline,
                                          const std::vector<model::Layer>& layers, bool speaks_of_shares);

  /// Before the step computes. With AdaScale the rate becomes the schedule's at the progress so far, times
  /// what the gain makes of it.
  void begin_step(StepReport& report, const optim::LearningRate& rate);
  /// A micro-batch of the step, which counts so much of it.
  void add_part(double share);
  /// Whether the norm of the mean is wanted in this step.
  bool measures() const { return measures_; }
  /// Behind the update: this rank's part goes into its report.
  void end_step(StepReport& report);
  /// What all ranks have said; the report gets the noise scale so far. In the order of steps.
  void observe(StepReport& report);

  /// Whether the scale-invariant steps of the schedule are over.
  bool schedule_is_over() const { return ada_ && ada_->progress() >= schedule_steps_; }
  /// Over the last part of the steps that were looked at; none before the first, without AdaScale too.
  std::optional<optim::GradientNoise> noise() const;

  /// "average" and "ada_scale"; shared, not copied: restored in place, and read again at every step.
  std::map<std::string, at::Tensor> state() const;
  /// For who asks before the next step.
  void restored() { load(); }

 private:
  NoiseScale(const ParallelPlan& plan, const optim::NamedTensors& weights, bool speaks_of_shares);
  void load();
  void store();

  const std::int64_t every_steps_;  ///< 0: what AdaScale looks at alone
  const bool speaks_of_shares_;
  parallel::GradientSquares squares_;
  optim::NoiseAverage average_;
  std::optional<optim::AdaScale> ada_;
  double exponent_ = 1;  ///< of the gain
  double schedule_steps_ = 0;
  at::Tensor average_state_, ada_state_;
  bool measures_ = false;
  double shares_ = 0;  ///< squares of those of this step
};

/// Whether lr.scale_with_batch says so.
bool uses_ada_scale(const RunConfig& config);

/// Steps of the schedule of learning rates: those of the run, or with AdaScale scale-invariant ones:
/// lr.progress_steps, or as many as the run's samples make batches of lr.reference_batch.
std::int64_t schedule_steps(const RunConfig& config, std::int64_t total_steps);

/// Throws Refusal: plans in which the parts' own gradients, or their mean, are never whole on a rank.
void check_noise_scale(const ParallelPlan& plan);

/// "largest useful batch: about 3100 samples (...)": what a run ends with.
std::string describe_noise(const optim::GradientNoise& noise, std::int64_t global_batch);

}  // namespace trireme::train
