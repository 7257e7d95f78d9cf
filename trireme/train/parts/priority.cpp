#include "trireme/train/parts/internal/priority.h"

#include <algorithm>

#include "trireme/parallel/data/lazy_update_optimizer.h"
#include "trireme/parallel/data/slicing_hook.h"
#include "trireme/train/parts/internal/serving.h"
#include "trireme/train/plan/internal/fixes.h"
#include "trireme/train/step/internal/all_parts.h"

namespace trireme::train {

std::vector<std::string> priority_names() { return {"none", "forward"}; }

void check_priority(const ParallelPlan& plan) {
  const RunConfig& config = plan.config();
  using Parallel = ParallelOptions;
  const Parallel& parallel = config.parallel;
  if (parallel.priority == "none") return;
  const Fix in_order = set(&RunConfig::parallel, &Parallel::priority, "none");
  const auto reject_if = [&](bool found, const Fix& fix, const auto&... reason) {
    if (found)
      throw PlanError(text("parallel.priority = \"", parallel.priority, "\": ", reason...), {fix, in_order});
  };
  reject_if(
      plan.device() != c10::kCPU, [](RunConfig& changed) { changed.comm.device = "cpu"; },
      "train.device = \"", config.comm.device, "\": slices go from the host's memory");
}

void reduce_by_priority(const RunConfig& config, parallel::DataParallelOptions& options) {
  const parallel::SlicingOptions slices{.slice_bytes = config.parallel.slice_kib << 10};
  const double slice_mib = static_cast<double>(parallel::max_slice_bytes(slices)) / (1 << 20);
  options.hook = parallel::make_slicing_hook(slices);
  options.end = parallel::ReductionEnd::kByParameter;
  // The reduction of a bucket starts with its last gradient, and the forward needs it for its first
  // parameter.
  options.bucket_mib = std::min(options.bucket_mib, slice_mib);
  options.first_bucket_mib = std::min(options.first_bucket_mib, slice_mib);
}

namespace {

/// The next forward begins while gradients of its later layers are still in transfer. Each layer waits only
/// for the updates of its own parameters.
class LazyUpdates final : public StepPart {
 public:
  void configure(PipelineSetup& setup) override {
    setup.layers = waiting_for_values(std::move(setup.layers), optimizer_);
  }
  std::unique_ptr<optim::Optimizer> wrap_optimizer(std::unique_ptr<optim::Optimizer> optimizer,
                                                   parallel::Pipeline& pipeline,
                                                   const optim::NamedTensors& parameters) override {
    return std::make_unique<parallel::LazyUpdateOptimizer>(
        std::move(optimizer), parameters,
        [&pipeline](const optim::NamedTensors& asked) { pipeline.finish_gradients(asked); });
  }
  void attach(const TrainerObjects& objects) override {
    *optimizer_ = &objects.optimizer;
    objects_.emplace(objects);
  }
  /// Without samples no layer runs, so no layer triggers the updates.
  void batch_arrived(Step& /*step*/, const data::StepBatch& batch) override {
    if (std::ranges::all_of(batch.microbatches, [](const auto& each) { return each.rows() == 0; }))
      objects_->optimizer.finish_pending_updates();
  }
  void gradients_ready(Step& step) override {
    if (step.is_observed || step.logs) objects_->pipeline.finish_gradients(objects_->parameters.all);
  }
  /// The weights are needed before the next forward, so all updates end now.
  void updated(Step& step) override {
    if (objects_->batches.step_schedule().shows_weights(step.report.step))
      objects_->optimizer.finish_pending_updates();
  }
  Completion completion() const override { return Completion::kCollective; }
  void synchronize() override { objects_->optimizer.finish_pending_updates(); }

 private:
  const std::shared_ptr<optim::Optimizer*> optimizer_ = std::make_shared<optim::Optimizer*>(nullptr);
  std::optional<TrainerObjects> objects_;
};

}  // namespace

std::unique_ptr<StepPart> make_lazy_updates(const PartSetup& setup) {
  return setup.plan.uses_lazy_updates() ? std::make_unique<LazyUpdates>() : nullptr;
}

}  // namespace trireme::train
