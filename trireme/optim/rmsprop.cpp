#include "trireme/optim/rmsprop.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>

#include "trireme/optim/internal/weight_decay.h"

namespace trireme::optim {

RmsProp::RmsProp(const OptimizerOptions& options)
    : momentum_(options.momentum), alpha_(options.alpha), eps_(options.eps), centered_(options.centered) {
  require_fraction(options, "momentum", momentum_);
  require_fraction(options, "alpha", alpha_);
  require_positive(options, "eps", eps_);
}

std::vector<StateTensor> RmsProp::states() const {
  std::vector<StateTensor> states = {{.name = "square_avg"}};
  if (momentum_ > 0) states.push_back({.name = "momentum"});
  if (centered_) states.push_back({.name = "grad_avg"});
  return states;
}

void RmsProp::update(UpdateLists& lists, const GroupSettings& group, double lr) const {
  const TensorVector gradients = with_l2(lists, group.weight_decay);
  const TensorVector& square_avg = lists.states.front();
  at::_foreach_mul_(square_avg, alpha_);
  at::_foreach_addcmul_(square_avg, gradients, gradients, 1 - alpha_);
  TensorVector divisor;
  if (centered_) {
    const TensorVector& grad_avg = lists.states.back();
    at::_foreach_lerp_(grad_avg, gradients, 1 - alpha_);
    divisor = at::_foreach_addcmul(square_avg, grad_avg, grad_avg, -1);
    at::_foreach_sqrt_(divisor);
  } else {
    divisor = at::_foreach_sqrt(square_avg);
  }
  at::_foreach_add_(divisor, eps_);
  if (momentum_ > 0) {
    const TensorVector& momentum = lists.states[1];
    at::_foreach_mul_(momentum, momentum_);
    at::_foreach_addcdiv_(momentum, gradients, divisor);
    at::_foreach_add_(lists.values, momentum, -lr);
  } else {
    at::_foreach_addcdiv_(lists.values, gradients, divisor, -lr);
  }
}

}  // namespace trireme::optim
