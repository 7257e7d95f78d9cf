#include "trireme/optim/lion.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sign.h>

namespace trireme::optim {

Lion::Lion(const OptimizerOptions& options) : beta1_(options.beta1), beta2_(options.beta2.value()) {
  require_fraction(options, "beta1", beta1_);
  require_fraction(options, "beta2", beta2_);
}

std::vector<StateTensor> Lion::states() const { return {{.name = "exp_avg"}}; }

void Lion::update(UpdateLists& lists, const GroupSettings& group, double lr) const {
  const TensorVector& exp_avg = lists.states[0];
  TensorVector directions = at::_foreach_lerp(exp_avg, lists.gradients, 1 - beta1_);
  at::_foreach_sign_(directions);
  if (group.weight_decay != 0) at::_foreach_mul_(lists.values, 1 - lr * group.weight_decay);
  at::_foreach_add_(lists.values, directions, -lr);
  at::_foreach_lerp_(exp_avg, lists.gradients, 1 - beta2_);
}

}  // namespace trireme::optim
