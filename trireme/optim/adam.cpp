#include "trireme/optim/adam.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>

#include "trireme/optim/internal/weight_decay.h"

namespace trireme::optim {

Adam::Adam(const OptimizerOptions& options, WeightDecay decay)
    : decay_(decay), factors_(adam_factors(options)) {}

std::vector<StateTensor> Adam::states() const {
  return {{.name = "exp_avg"}, {.name = "exp_avg_sq"}, {.name = "step", .form = StateTensor::Form::kNumber}};
}

void Adam::update_frozen(UpdateLists& lists, double weight_decay, double lr) const {
  if (lists.values.empty()) return;
  if (decay_ == WeightDecay::kL2) lists.gradients = with_l2(lists, weight_decay);
  const TensorVector updates = frozen_adam_updates(lists, factors_);
  if (decay_ == WeightDecay::kDecoupled && weight_decay != 0)
    at::_foreach_mul_(lists.values, 1 - lr * weight_decay);
  at::_foreach_add_(lists.values, updates, -lr);
}

void Adam::update(UpdateLists& lists, const GroupSettings& group, double lr) const {
  if (factors_.variance_steps > 0) {
    UpdateLists frozen = take_frozen(lists, 2, factors_.variance_steps);
    update_frozen(frozen, group.weight_decay, lr);
    if (lists.values.empty()) return;
  }
  const TensorVector &exp_avg = lists.states[0], &exp_avg_sq = lists.states[1], &steps = lists.states[2];
  at::_foreach_add_(steps, 1);
  const auto apply = [&](const auto& kernel, const auto& rate) {
    kernel(lists.values, lists.gradients, exp_avg, exp_avg_sq, /*max_exp_avg_sqs=*/at::TensorList(), steps,
           rate, factors_.beta1, factors_.beta2, group.weight_decay, factors_.eps, /*amsgrad=*/false,
           /*maximize=*/false, /*grad_scale=*/std::nullopt, lists.leave_out);
  };
  const auto apply_rate = [&](const auto& kernel) {
    lists.lr ? apply(kernel, *lists.lr) : apply(kernel, lr);
  };
  if (decay_ == WeightDecay::kDecoupled) {
    apply_rate([](const auto&... arguments) { at::_fused_adamw_(arguments...); });
  } else {
    apply_rate([](const auto&... arguments) { at::_fused_adam_(arguments...); });
  }
  // The kernels leave the counts of updates to their caller.
  if (lists.leave_out) at::_foreach_add_(steps, *lists.leave_out, -1);
}

}  // namespace trireme::optim
