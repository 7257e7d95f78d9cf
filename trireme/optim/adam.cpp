#include "trireme/optim/adam.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>

namespace trireme::optim {

Adam::Adam(const OptimizerOptions& options, WeightDecay decay)
    : decay_(decay), beta1_(options.beta1), beta2_(options.beta2), eps_(options.eps) {
  require_fraction(options, "beta1", beta1_);
  require_fraction(options, "beta2", beta2_);
  require_positive(options, "eps", eps_);
}

std::vector<StateTensor> Adam::states() const {
  return {{.name = "exp_avg"}, {.name = "exp_avg_sq"}, {.name = "step", .form = StateTensor::Form::kCount}};
}

void Adam::update(UpdateLists& lists, const GroupSettings& group, double lr) const {
  const TensorVector &exp_avg = lists.states[0], &exp_avg_sq = lists.states[1], &steps = lists.states[2];
  at::_foreach_add_(steps, 1);
  const auto apply = [&](const auto& kernel) {
    kernel(lists.values, lists.gradients, exp_avg, exp_avg_sq, /*max_exp_avg_sqs=*/at::TensorList(), steps,
           lr, beta1_, beta2_, group.weight_decay, eps_, /*amsgrad=*/false, /*maximize=*/false);
  };
  if (decay_ == WeightDecay::kDecoupled) {
    apply([](const auto&... arguments) { at::_fused_adamw_(arguments...); });
  } else {
    apply([](const auto&... arguments) { at::_fused_adam_(arguments...); });
  }
}

}  // namespace trireme::optim
