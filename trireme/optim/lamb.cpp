#include "trireme/optim/lamb.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/stack.h>

#include "trireme/optim/internal/trust_ratio.h"

namespace trireme::optim {
namespace {

/// 1 - beta^t per parameter, in f64: in f32 the difference would lose half of its digits in the first steps.
at::Tensor bias_corrections(double beta, const at::Tensor& steps) { return 1 - at::pow(beta, steps); }

}  // namespace

Lamb::Lamb(const OptimizerOptions& options)
    : beta1_(options.beta1), beta2_(options.beta2), eps_(options.eps) {
  require_fraction(options, "beta1", beta1_);
  require_fraction(options, "beta2", beta2_);
  require_positive(options, "eps", eps_);
}

std::vector<StateTensor> Lamb::states() const {
  return {{.name = "exp_avg"}, {.name = "exp_avg_sq"}, {.name = "step", .form = StateTensor::Form::kCount}};
}

void Lamb::update(UpdateLists& lists, const GroupSettings& group, double lr) const {
  const TensorVector &exp_avg = lists.states[0], &exp_avg_sq = lists.states[1], &counts = lists.states[2];
  at::_foreach_add_(counts, 1);
  at::_foreach_lerp_(exp_avg, lists.gradients, 1 - beta1_);
  at::_foreach_mul_(exp_avg_sq, beta2_);
  at::_foreach_addcmul_(exp_avg_sq, lists.gradients, lists.gradients, 1 - beta2_);

  const at::Tensor steps = at::stack(counts).to(at::kDouble);
  TensorVector divisor = at::_foreach_sqrt(exp_avg_sq);
  at::_foreach_div_(divisor, bias_corrections(beta2_, steps).sqrt().unbind());
  at::_foreach_add_(divisor, eps_);
  at::_foreach_mul_(divisor, bias_corrections(beta1_, steps).unbind());
  TensorVector updates = at::_foreach_div(exp_avg, divisor);
  if (group.weight_decay != 0) at::_foreach_add_(updates, lists.values, group.weight_decay);
  if (group.adaptive)
    at::_foreach_mul_(updates, trust_ratios(lists.values, updates, /*coefficient=*/1, /*weight_decay=*/0));
  at::_foreach_add_(lists.values, updates, -lr);
}

}  // namespace trireme::optim
