// Asynchronous pipeline schedules (PipeDream, PipeDream-2BW, 1F1B-RR): stages update while micro-batches of
// later updates are under way. Streams span the steps up to the next point at which all ranks synchronise.
#include <ATen/ops/zeros.h>

#include <set>

#include "trireme/data/sampler.h"
#include "trireme/train/step/internal/all_parts.h"

namespace trireme::train {
namespace {

class AsynchronousUpdates final : public StepPart {
 public:
  explicit AsynchronousUpdates(const PartSetup& setup)
      : num_ranks_(setup.context.world_size()),
        num_microbatches_(setup.plan.num_microbatches()),
        updates_of_step_(num_microbatches_ / setup.plan.program().update_every),
        sample_(setup.data.train->trial_batch(1).input) {}

  void attach(const TrainerObjects& objects) override { objects_.emplace(objects); }
  /// Ranks reach a step one after the other, and must not wait for its report.
  std::optional<ReportExchange> report_exchange() const override {
    return ReportExchange{.depth = num_ranks_};
  }
  void begin_stream(parallel::Pipeline::Stream& stream, std::int64_t steps_done) override {
    begin_ = steps_done;
    const std::int64_t end = objects_->batches.step_schedule().next_meeting(steps_done);
    stream.num_updates = static_cast<int>(end - steps_done);
    stream.shapes = shapes_before(end);
    // Losses are parts of the mean over a step. An update takes the mean over its own micro-batches, which
    // have equal sizes.
    stream.gradient_scale *= updates_of_step_;
  }
  void end_step(Step& step) override {
    const parallel::Pipeline::Staleness staleness = objects_->pipeline.staleness();
    step.report.staleness = staleness.updates;
    step.report.weight_versions = staleness.versions;
  }
  void reported(StepReport& report, std::int64_t steps_done) override {
    if (report.stop_signal == 0) return;
    objects_->pipeline.finish_after(static_cast<int>(steps_done - begin_) +
                                    objects_->pipeline.asynchronous_margin());
  }

 private:
  /// Inputs for every size of micro-batch in the steps before `end`. A batch may grow, and the last one of an
  /// epoch may be smaller. No epoch ends before `end`.
  std::vector<Fields> shapes_before(std::int64_t end) const {
    const StepSchedule& step_schedule = objects_->batches.step_schedule();
    std::set<std::int64_t> sizes;
    std::vector<std::int64_t> steps = step_schedule.batches().phases_in(begin_, end);
    steps.push_back(end - 1);
    for (const std::int64_t step : steps) {
      for (int m = 0; m < num_microbatches_; ++m)
        sizes.insert(data::slice_of(step_schedule.batch(step).size, m, num_microbatches_).size());
    }
    sizes.erase(0);
    std::vector<Fields> shapes;
    for (const std::int64_t size : sizes) {
      shapes.push_back(sample_.map([&](const at::Tensor& one) {
        std::vector<std::int64_t> shape = one.sizes().vec();
        shape[0] = size;
        return at::zeros(shape, one.options().device(objects_->model.device));
      }));
    }
    return shapes;
  }

  const int num_ranks_, num_microbatches_;
  const int updates_of_step_;  ///< of a stage without replicas
  const Fields sample_;
  std::optional<TrainerObjects> objects_;
  std::int64_t begin_ = 0;  ///< steps before the current stream
};

}  // namespace

std::unique_ptr<StepPart> make_asynchronous_updates(const PartSetup& setup) {
  return setup.plan.asynchronous() ? std::make_unique<AsynchronousUpdates>(setup) : nullptr;
}

}  // namespace trireme::train
