// parallel.check_replicas_every: replicas whose parameters have drifted apart end the run
// (parallel/data/replica_check.h).
#include "trireme/base/text.h"
#include "trireme/train/parts/internal/replica_labels.h"
#include "trireme/train/step/internal/all_parts.h"

namespace trireme::train {
namespace {

class DriftCheck final : public StepPart {
 public:
  void attach(const TrainerObjects& objects) override { objects_.emplace(objects); }
  /// As layers have computed with them: sharded ones are gathered now, and apart after the update.
  void gradients_ready(Step& step) override {
    if (!objects_->batches.calendar().checks_replicas(step.report.step)) return;
    if (!check_) {
      check_ = make_replica_check(objects_->plan, objects_->groups, objects_->context,
                                  {.weights = objects_->pipeline.weights(),
                                   .updated = objects_->parameters.all,
                                   .held = objects_->parameters.held});
    }
    check_->run(text("step ", step.report.step));
  }

 private:
  std::optional<TrainerObjects> objects_;
  std::unique_ptr<parallel::ReplicaCheck> check_;  ///< since it was first due
};

}  // namespace

/// Stages that update on their own time have no replicas.
std::unique_ptr<StepPart> make_replica_check(const PartSetup& setup) {
  return setup.plan.asynchronous() ? nullptr : std::make_unique<DriftCheck>();
}

}  // namespace trireme::train
