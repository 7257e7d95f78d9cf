// train.ema_decay: an exponential moving average of the weights, which evaluations and exports use.
#include "trireme/optim/moving_average.h"

#include "trireme/checkpoint/checkpoint_part.h"
#include "trireme/parallel/counted_memory.h"
#include "trireme/train/step/internal/all_parts.h"

namespace trireme::train {
namespace {

class MovingAverage final : public StepPart {
 public:
  explicit MovingAverage(double decay) : decay_(decay) {}

  void attach(const TrainerObjects& objects) override {
    held_ = &objects.parameters.held;
    average_.emplace(objects.parameters.all, decay_);
    for (const auto& [name, tensor] : average_->state()) parallel::count_as(MemoryKind::kOptimizer, tensor);
  }
  void updated(Step& step) override { average_->update(step.leave_out); }
  std::shared_ptr<void> evaluated_weights() override {
    return std::make_shared<optim::ExponentialMovingAverage::SwapScope>(*average_);
  }
  void add_state(StateParts& state) override {
    state.push_back(state_part(text(checkpoint::kOptimizerPrefix, "ema/"), average_->state(), *held_));
    state.back().must_be_finite = true;
  }

 private:
  const double decay_;
  const ShardSpecs* held_ = nullptr;
  std::optional<optim::ExponentialMovingAverage> average_;
};

}  // namespace

std::unique_ptr<StepPart> make_moving_average(const PartSetup& setup) {
  const double decay = setup.plan.config().train.ema_decay;
  return decay > 0 ? std::make_unique<MovingAverage>(decay) : nullptr;
}

}  // namespace trireme::train
