#include "trireme/optim/rmsprop.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_maximum.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>

#include <limits>

#include "trireme/optim/internal/weight_decay.h"

namespace trireme::optim {

namespace {

/// The machine epsilon of the type.
double rounding_of(at::ScalarType type) {
  if (type == at::kDouble) return std::numeric_limits<double>::epsilon();
  if (type == at::kHalf) return std::numeric_limits<c10::Half>::epsilon();
  if (type == at::kBFloat16) return std::numeric_limits<c10::BFloat16>::epsilon();
  return std::numeric_limits<float>::epsilon();
}

}  // namespace

RmsProp::RmsProp(const OptimizerOptions& options)
    : momentum_(options.momentum.value()),
      alpha_(options.alpha),
      eps_(options.eps.value()),
      centered_(options.centered) {
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
    // With nearly constant gradients, only rounding errors remain, and these may be negative.
    at::_foreach_maximum_(divisor,
                          at::_foreach_mul(square_avg, rounding_of(square_avg.front().scalar_type())));
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
