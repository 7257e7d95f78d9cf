// train.precision = "fp16" and train.non_finite = "skip": the loss is scaled before backward, gradients are
// unscaled, and a step whose gradients are not finite on any rank is skipped on all.
#include <ATen/ops/full.h>

#include "trireme/base/error.h"
#include "trireme/checkpoint/checkpoint_part.h"
#include "trireme/optim/loss_scaler.h"
#include "trireme/train/step/internal/all_parts.h"

namespace trireme::train {
namespace {

class LossScaling final : public StepPart {
 public:
  explicit LossScaling(const ParallelPlan& plan) : most_skipped_(plan.config().train.max_skipped_steps) {
    if (plan.precision().scales_loss) scaler_.emplace(plan.config().scaler);
  }

  void attach(const TrainerObjects& objects) override {
    held_ = &objects.parameters.held;
    judged_ = objects.parameters.judged;
    holders_ = objects.groups.holders;
  }
  void begin_stream(parallel::Pipeline::Stream& stream, std::int64_t /*steps_done*/) override {
    if (scaler_) stream.gradient_scale = scaler_->scale();
  }
  void gradients_ready(Step& step) override {
    if (scaler_) step.report.loss_scale = scaler_->scale();
    const bool finite =
        on_all_holders(scaler_ ? scaler_->unscale(judged_) : optim::unscale_gradients(judged_, 1));
    step.report.skipped = !finite;
    if (scaler_) finite ? scaler_->took_step() : scaler_->left_out_step(step.report.step);
  }
  void skipped(Step& step) override {
    if (step.skipped_in_a_row < most_skipped_) return;
    throw DivergedError(text("step ", step.report.step, ": ", step.skipped_in_a_row,
                             " steps in a row were skipped, because gradients were not finite "
                             "(train.max_skipped_steps; learning rate ",
                             step.report.lr,
                             "); lower optimizer.lr, warm up (lr.warmup_steps) or clip (train.clip_norm)"));
  }
  void add_state(StateParts& state) override {
    if (!scaler_) return;
    state.push_back(state_part(text(checkpoint::kOptimizerPrefix, "scaler/"), scaler_->state(), *held_));
  }

 private:
  bool on_all_holders(bool here) {
    if (holders_->size() == 1) return here;
    at::Tensor flag = at::full({1}, here ? 1 : 0, at::kInt);
    holders_->all_reduce(flag, comm::ReduceOp::kMin);
    return flag.item<int>() == 1;
  }

  const std::int64_t most_skipped_;
  const HeldParts* held_ = nullptr;
  std::optional<optim::LossScaler> scaler_;  ///< none: gradients are only looked at
  optim::NamedTensors judged_;
  std::optional<comm::Group> holders_;
};

}  // namespace

std::unique_ptr<StepPart> make_loss_scaling(const PartSetup& setup) {
  return setup.plan.skips_non_finite() ? std::make_unique<LossScaling>(setup.plan) : nullptr;
}

}  // namespace trireme::train
