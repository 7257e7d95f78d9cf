// parallel.check_replicas_every: replicas whose parameters have drifted apart end the run
// (parallel/data/replica_check.h).
#include "trireme/base/text.h"
#include "trireme/train/parts/internal/replica_labels.h"
#include "trireme/train/step/internal/all_parts.h"

namespace trireme::train {
namespace {

class DriftCheck : public StepPart {
 public:
  void attach(const TrainerObjects& objects) override { objects_.emplace(objects); }
  /// Compares the weights that layers have computed with. Sharded ones are gathered now, but not after the
  /// update.
  void gradients_ready(Step& step) override {
    if (objects_->batches.step_schedule().checks_replicas(step.report.step))
      compare(text("step ", step.report.step));
  }

 protected:
  void compare(const std::string& when) {
    if (!check_) {
      check_ = make_replica_check(objects_->plan, objects_->groups, objects_->context,
                                  {.weights = objects_->pipeline.weights(),
                                   .updated = objects_->parameters.all,
                                   .held = objects_->parameters.held});
    }
    check_->run(when);
  }

 private:
  std::optional<TrainerObjects> objects_;
  std::unique_ptr<parallel::ReplicaCheck> check_;  ///< null until the first check is due
};

/// For asynchronous schedules: compares when all ranks have done the same steps.
class DrainedDriftCheck final : public DriftCheck {
 public:
  void gradients_ready(Step& /*step*/) override {}
  void synchronize() override { compare("the weights that are evaluated or saved"); }
};

}  // namespace

std::unique_ptr<StepPart> make_replica_check(const PartSetup& setup) {
  if (!setup.plan.asynchronous()) return std::make_unique<DriftCheck>();
  const bool is_asked = setup.plan.config().parallel.check_replicas_every > 0;
  if (!is_asked || setup.plan.replicas_of_stages().empty()) return nullptr;
  return std::make_unique<DrainedDriftCheck>();
}

}  // namespace trireme::train
