#pragma once
// The batches of a run, step by step: the samples of a step, this rank's share of them on its device, and the
// divisor of a batch's losses. Collective where the objective counts by value; one thread.

#include <cstdint>
#include <memory>
#include <optional>

#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/train/plan/parallel_plan.h"
#include "trireme/train/plan/placement.h"
#include "trireme/train/step/device_prefetcher.h"
#include "trireme/train/step/step_schedule.h"
#include "trireme/train/step/trained_model.h"

namespace trireme::train {

class BatchFeed {
 public:
  /// `computed`: the sides of a batch that this rank's stages compute with.
  BatchFeed(const ParallelPlan& plan, comm::Context& context, const PlanGroups& groups,
            const data::DataSource& data, const TrainedModel& model, const data::Needed& computed);

  const StepSchedule& step_schedule() const { return step_schedule_; }
  /// As BatchStream's.
  void change_ramp(std::int64_t from, const data::BatchRamp& ramp);
  /// Where the batches come from.
  DevicePrefetcher& feed() { return feed_; }
  const DevicePrefetcher& feed() const { return feed_; }
  /// Fields that this rank reads. The divisor of losses may need fields on all stages.
  const data::Needed& needed() const { return needed_; }

  /// Micro-batches of a stream are counted from here on, the first of them of the step after `steps`.
  void begin_stream(std::int64_t steps) { stream_begin_ = steps; }
  /// A micro-batch of a stream: steps before its own, and its number in that.
  struct Place {
    std::int64_t steps;
    std::size_t microbatch;
  };
  /// Position of micro-batch `m` in the stream.
  Place place_of(int m) const {
    return {stream_begin_ + m / num_microbatches_, static_cast<std::size_t>(m % num_microbatches_)};
  }

  /// Waits for the batch after `steps` steps. Throws DataError, which names the step.
  const data::StepBatch& next(std::int64_t steps);
  /// The divisor of the current batch's losses: the count of the global batch. Collective where the objective
  /// counts by value.
  double global_count();
  /// Of a micro-batch's targets.
  double count_of(const data::Example& samples) const;
  bool counts_by_value() const { return objective_->counts_by_value(); }
  /// Seconds of waiting for other ranks' counts.
  double waited_s() const { return waited_s_; }

 private:
  comm::Context& context_;
  const std::optional<comm::Group> replicas_;
  const std::shared_ptr<const objective::Objective> objective_;
  const double count_of_sample_;
  const int num_microbatches_;  ///< of a step
  const data::Needed needed_;
  const data::StreamOptions batches_;  ///< which samples are the batch of which step, as the run began
  const std::int64_t num_samples_;
  StepSchedule step_schedule_;
  DevicePrefetcher feed_;
  std::int64_t stream_begin_ = 0;
  double waited_s_ = 0;
};

}  // namespace trireme::train
