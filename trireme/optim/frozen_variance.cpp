#include "trireme/optim/frozen_variance.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>

namespace trireme::optim {
namespace {

void append(UpdateLists& to, const UpdateLists& from, std::size_t i) {
  to.values.push_back(from.values[i]);
  to.gradients.push_back(from.gradients[i]);
  for (std::size_t s = 0; s < from.states.size(); ++s) to.states[s].push_back(from.states[s][i]);
}

}  // namespace

AdamFactors adam_factors(const OptimizerOptions& options) {
  require_fraction(options, "beta1", options.beta1);
  require_fraction(options, "beta2", options.beta2.value());
  require_positive(options, "eps", options.eps.value());
  require_not_negative(options, "variance_steps", static_cast<double>(options.variance_steps));
  return {.beta1 = options.beta1,
          .beta2 = options.beta2.value(),
          .eps = options.eps.value(),
          .variance_steps = options.variance_steps};
}

UpdateLists take_frozen(UpdateLists& lists, std::size_t counts, std::int64_t variance_steps) {
  UpdateLists learning, frozen;
  learning.states.resize(lists.states.size());
  frozen.states.resize(lists.states.size());
  const at::Tensor updates = at::stack(lists.states[counts]).cpu();  // one copy to the host for all tensors
  const float* count = updates.const_data_ptr<float>();
  for (std::size_t i = 0; i < lists.values.size(); ++i)
    append(count[i] < static_cast<float>(variance_steps) ? learning : frozen, lists, i);
  lists = std::move(learning);
  return frozen;
}

at::Tensor adam_divisor(const at::Tensor& mean_square, const at::Tensor& steps, const AdamFactors& factors) {
  const at::Tensor correction = (1 - at::pow(factors.beta2, steps.to(at::kDouble))).sqrt();
  return (mean_square.sqrt() / correction).add_(factors.eps);
}

double max_adam_update(const AdamFactors& factors) {
  return std::max(1.0, (1 - factors.beta1) / std::sqrt(1 - factors.beta2));
}

TensorVector frozen_adam_updates(UpdateLists& lists, const AdamFactors& factors) {
  const TensorVector &momenta = lists.states[0], &mean_squares = lists.states[1], &counts = lists.states[2];
  at::_foreach_add_(counts, 1);
  at::_foreach_lerp_(momenta, lists.gradients, 1 - factors.beta1);
  const double most = max_adam_update(factors);
  TensorVector updates;
  for (std::size_t i = 0; i < momenta.size(); ++i) {
    const at::Tensor correction = 1 - at::pow(factors.beta1, counts[i].to(at::kDouble));
    const at::Tensor warmup = at::full_like(counts[i], static_cast<double>(factors.variance_steps));
    at::Tensor update = momenta[i] / adam_divisor(mean_squares[i], warmup, factors).mul_(correction);
    update.clamp_(-most, most).add_(momenta[i], 0);  // NaN stays NaN: the clamp must not hide it
    updates.push_back(update.masked_fill_(mean_squares[i] == 0, 0));
  }
  return updates;
}

}  // namespace trireme::optim
