// train.precision = "fp16" and train.non_finite = "skip": the loss is scaled before backward, gradients are
// unscaled, and a step whose gradients are not finite on any rank is skipped on all.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "trireme/base/error.h"
#include "trireme/batch/device_numbers.h"
#include "trireme/checkpoint/checkpoint_part.h"
#include "trireme/optim/loss_scaler.h"
#include "trireme/train/step/internal/all_parts.h"

namespace trireme::train {
namespace {

class LossScaling final : public StepPart {
 public:
  explicit LossScaling(const PartSetup& setup)
      : max_skipped_(setup.plan.config().train.max_skipped_steps),
        device_(setup.device),
        skipped_in_a_row_(at::zeros({}, at::device(setup.device).dtype(at::kDouble))) {
    if (setup.plan.precision().scales_loss) scaler_.emplace(setup.plan.config().scaler, setup.device);
  }

  void attach(const TrainerObjects& objects) override {
    held_ = &objects.parameters.held;
    clip_parameters_ = objects.parameters.clip_parameters;
    model_parallel_ = objects.groups.model_parallel;
    stays_on_device_ = objects.skips_on_device;
  }
  void begin_stream(parallel::Pipeline::Stream& stream, std::int64_t /*steps_done*/) override {
    if (!scaler_) return;
    if (stays_on_device_)
      stream.gradient_scale_there = scaler_->scale_there().clone();
    else
      stream.gradient_scale = scaler_->scale();
  }
  void gradients_ready(Step& step) override {
    const at::Tensor scale = scaler_ ? scaler_->scale_there().clone() : at::Tensor();
    const at::Tensor left_out = on_any_holder(unscaled());
    // Observers must not see the gradients of a skipped step, so the host needs the decision then.
    const bool stays = stays_on_device_ && !step.is_observed;
    if (stays)
      step.leave_out = left_out.reshape({});
    else
      step.report.skipped = left_out.item<float>() > 0;
    count(left_out);
    const auto complete = [this, skipped = batch::DeviceNumbers(left_out),
                           scales = batch::DeviceNumbers(scale),
                           in_a_row = batch::DeviceNumbers(skipped_in_a_row_)](StepReport& report) {
      report.skipped = skipped.read().front() > 0;
      if (scaler_) report.loss_scale = scales.read().front();
      if (report.skipped) require_progress(report, in_a_row.read().front());
    };
    if (stays)
      step.completions.emplace_back(complete);
    else
      complete(step.report);
  }
  std::int64_t skipped_in_a_row() const override {
    return static_cast<std::int64_t>(skipped_in_a_row_.item<double>());
  }
  void add_state(StateParts& state) override {
    if (!scaler_) return;
    state.push_back(state_part(text(checkpoint::kOptimizerPrefix, "scaler/"), scaler_->state(), *held_));
  }

 private:
  /// 1 where a gradient of this rank is not finite, else 0; one number, on the device.
  at::Tensor unscaled() const {
    const at::Tensor scale =
        scaler_ ? scaler_->scale_there() : at::ones({}, at::device(device_).dtype(at::kDouble));
    const at::Tensor found = optim::unscale_gradients(clip_parameters_, scale);
    return found.defined() ? found.to(device_) : at::zeros({1}, at::device(device_).dtype(at::kFloat));
  }
  at::Tensor on_any_holder(at::Tensor left_out) {
    if (model_parallel_->size() > 1) model_parallel_->all_reduce(left_out, comm::ReduceOp::kMax);
    return left_out;
  }
  void count(const at::Tensor& left_out) {
    const at::NoGradGuard no_grad;
    skipped_in_a_row_ = (skipped_in_a_row_ + 1) * left_out.reshape({}).to(at::kDouble);
    if (scaler_) scaler_->decide(left_out);
  }
  void require_progress(const StepReport& report, double skipped_in_a_row) const {
    if (scaler_) scaler_->require_above_least(*report.loss_scale, report.step);
    if (skipped_in_a_row < static_cast<double>(max_skipped_)) return;
    throw DivergedError(text("step ", report.step, ": ", skipped_in_a_row,
                             " steps in a row were skipped, because gradients were not finite "
                             "(train.max_skipped_steps; learning rate ",
                             report.lr,
                             "); lower optimizer.lr, warm up (lr.warmup_steps) or clip (train.clip_norm)"));
  }

  const std::int64_t max_skipped_;
  const c10::Device device_;
  const ShardSpecs* held_ = nullptr;
  std::optional<optim::LossScaler> scaler_;  ///< none: gradients are only checked
  at::Tensor skipped_in_a_row_;              ///< f64, no dims, on the device
  bool stays_on_device_ = false;             ///< the decision on a skip
  optim::NamedTensors clip_parameters_;
  std::optional<comm::Group> model_parallel_;
};

}  // namespace

std::unique_ptr<StepPart> make_loss_scaling(const PartSetup& setup) {
  return setup.plan.skips_non_finite() ? std::make_unique<LossScaling>(setup) : nullptr;
}

}  // namespace trireme::train
