#pragma once
// The actions that are due after each step. No other code decides this. A value; pure.

#include <cstdint>

#include "trireme/data/batch_layout.h"
#include "trireme/train/config/run_config.h"

namespace trireme::train {

class StepSchedule {
 public:
  StepSchedule(const RunConfig& config, const data::BatchLayout& batches);

  /// From now on; the same for the steps that were done.
  void set_batches(const data::BatchLayout& batches);
  /// The batch of the step after so many.
  data::BatchPlace batch(std::int64_t steps) const { return batches_.at(static_cast<std::uint64_t>(steps)); }
  const data::BatchLayout& batches() const { return batches_; }
  /// Of the whole run: train.epochs, ended by train.max_steps.
  std::int64_t total_steps() const { return total_steps_; }

  /// After step number `step`, 1 for the first: every so many steps; evaluations, by default, at the end of
  /// an epoch. Actions at the end of a run are not included.
  bool evaluates(std::int64_t step) const {
    return evaluates_every_ > 0 ? step % evaluates_every_ == 0 : batch(step).first == 0;
  }
  /// With checkpoint.interval = "auto" never: SaveInterval decides.
  bool saves(std::int64_t step) const { return saves_every_ > 0 && step % saves_every_ == 0; }
  /// A line of metrics is written for it.
  bool logs(std::int64_t step) const { return step % logs_every_ == 0 || step == total_steps_; }

  /// In it ranks compare the parameters that they hold alike.
  bool checks_replicas(std::int64_t step) const {
    return checks_replicas_every_ > 0 && (step % checks_replicas_every_ == 0 || step == total_steps_);
  }

  /// The weights after it are read as a whole, before the next step's: by an evaluation, a checkpoint, or the
  /// caller of the run.
  bool shows_weights(std::int64_t step) const {
    return step >= total_steps_ || evaluates(step) || saves(step);
  }

  /// The next step, after number `step`, at which all ranks have to have done the same: an evaluation, a
  /// checkpoint, or the end of an epoch or of the run comes there.
  std::int64_t next_meeting(std::int64_t step) const;

 private:
  data::BatchLayout batches_;
  std::int64_t epochs_, max_steps_, total_steps_, evaluates_every_, saves_every_, logs_every_,
      checks_replicas_every_;
};

}  // namespace trireme::train
