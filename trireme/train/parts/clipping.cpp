// train.clip_norm, and the norm of gradients in the metrics.
#include "trireme/batch/device_numbers.h"
#include "trireme/model/model.h"
#include "trireme/train/parts/gradient_norm.h"
#include "trireme/train/step/internal/all_parts.h"

namespace trireme::train {
namespace {

std::vector<std::string> parameter_names(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : module.named_parameters()) names.push_back(item.key());
  return names;
}

class Clipping final : public StepPart {
 public:
  explicit Clipping(const PartSetup& setup)
      : max_norm_(setup.plan.config().train.clip_norm),
        // Asynchronous stages, and servers, never have the gradients of the whole model at one time.
        logs_norm_(!setup.plan.asynchronous() && !setup.plan.uses_parameter_server()),
        in_parts_(setup.plan.has_sharded_parameters() && !setup.plan.exact()),
        names_(parameter_names(setup.model)) {}

  void attach(const TrainerObjects& objects) override {
    parameters_ = objects.parameters.all;
    norm_.emplace(
        in_parts_ ? GradientNorm(objects.groups.model_parallel, objects.parameters.all, names_,
                                 objects.parameters.held)
                  : GradientNorm(objects.groups.model_parallel, objects.parameters.clip_parameters, names_));
  }
  void before_update(Step& step) override {
    const bool clips = max_norm_ > 0;
    if (clips || step.wants_norm || (step.logs && logs_norm_)) step.grad_norm = norm_->measure();
    if (clips) optim::clip_to_norm(parameters_, step.grad_norm, max_norm_);
  }
  void end_step(Step& step) override {
    if (!step.grad_norm.defined()) return;
    step.completions.push_back([norm = batch::DeviceNumbers(step.grad_norm)](StepReport& report) {
      report.grad_norm = norm.read().front();
    });
  }

 private:
  const double max_norm_;
  const bool logs_norm_, in_parts_;
  const std::vector<std::string> names_;  ///< of the model's parameters, in its order
  optim::NamedTensors parameters_;
  std::optional<GradientNorm> norm_;
};

}  // namespace

std::unique_ptr<StepPart> make_clipping(const PartSetup& setup) { return std::make_unique<Clipping>(setup); }

}  // namespace trireme::train
