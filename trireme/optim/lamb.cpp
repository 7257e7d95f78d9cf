#include "trireme/optim/lamb.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include "trireme/optim/internal/trust_ratio.h"

namespace trireme::optim {
namespace {

// The values of the authors of 1-bit LAMB.
constexpr double kTrustBeta = 0.9, kMinTrust = 0.01, kMaxTrust = 10;
constexpr double kMinFactor = 0.5, kMaxFactor = 4, kFactorStep = 0.1;

/// 1 - beta^t per parameter, in f64: in f32 it would lose half of its digits in the first steps.
at::Tensor bias_corrections(double beta, const at::Tensor& steps) { return 1 - at::pow(beta, steps); }

}  // namespace

Lamb::Lamb(const OptimizerOptions& options) : factors_(adam_factors(options)) {}

std::vector<StateTensor> Lamb::states() const {
  using Form = StateTensor::Form;
  std::vector<StateTensor> states = {
      {.name = "exp_avg"}, {.name = "exp_avg_sq"}, {.name = "step", .form = Form::kNumber}};
  if (factors_.variance_steps > 0) {
    states.push_back({.name = "exp_avg_sq_fresh"});
    states.push_back({.name = "trust_avg", .form = Form::kNumber});
    states.push_back({.name = "trust_factor", .form = Form::kNumber});
  }
  return states;
}

void Lamb::update(UpdateLists& lists, const GroupSettings& group, double lr) const {
  if (factors_.variance_steps > 0) {
    UpdateLists frozen = take_frozen(lists, 2, factors_.variance_steps);
    update_frozen(frozen, group, lr);
    if (lists.values.empty()) return;
  }
  update_learning(lists, group, lr);
}

void Lamb::update_learning(UpdateLists& lists, const GroupSettings& group, double lr) const {
  const TensorVector &exp_avg = lists.states[0], &exp_avg_sq = lists.states[1], &counts = lists.states[2];
  at::_foreach_add_(counts, 1);
  at::_foreach_lerp_(exp_avg, lists.gradients, 1 - factors_.beta1);
  at::_foreach_mul_(exp_avg_sq, factors_.beta2);
  at::_foreach_addcmul_(exp_avg_sq, lists.gradients, lists.gradients, 1 - factors_.beta2);

  const at::Tensor steps = at::stack(counts).to(at::kDouble);
  TensorVector divisor = at::_foreach_sqrt(exp_avg_sq);
  at::_foreach_div_(divisor, bias_corrections(factors_.beta2, steps).sqrt().unbind());
  at::_foreach_add_(divisor, factors_.eps);
  at::_foreach_mul_(divisor, bias_corrections(factors_.beta1, steps).unbind());
  TensorVector updates = at::_foreach_div(exp_avg, divisor);
  if (group.weight_decay != 0) at::_foreach_add_(updates, lists.values, group.weight_decay);
  if (group.adaptive) {
    const TensorVector ratios = trust_ratios(lists, updates, /*coefficient=*/1, /*weight_decay=*/0);
    at::_foreach_mul_(updates, ratios);
    if (factors_.variance_steps > 0) note_trust(lists, ratios);
  }
  at::_foreach_add_(lists.values, updates, -lr);
}

void Lamb::update_frozen(UpdateLists& lists, const GroupSettings& group, double lr) const {
  if (lists.values.empty()) return;
  const TensorVector momentum_updates = frozen_adam_updates(lists, factors_);
  for (std::size_t i = 0; i < lists.values.size(); ++i) {
    const at::Tensor &value = lists.values[i], &fresh = lists.states[3][i];
    fresh.lerp_(lists.gradients[i] * lists.gradients[i], 1 - factors_.beta2);
    at::Tensor update = momentum_updates[i];
    if (group.weight_decay != 0) update = update + value * group.weight_decay;
    if (group.adaptive) {
      const at::Tensor share = at::where(update.norm() > 0, momentum_updates[i].norm() / update.norm(), 1.0);
      update = update * trust_of(lists, i, share.clamp_max(1.0));
    }
    value.add_(update, -lr);
  }
}

void Lamb::note_trust(const UpdateLists& lists, const TensorVector& ratios) const {
  for (std::size_t i = 0; i < ratios.size(); ++i) {
    lists.states[3][i].copy_(lists.states[1][i]);
    lists.states[4][i].lerp_(ratios[i].to(at::kFloat).clamp(kMinTrust, kMaxTrust), 1 - kTrustBeta);
    lists.states[5][i].fill_(1);
  }
}

/// The trust ratio of 1-bit LAMB: the mean ratio of the warm-up, times a factor. The factor is the largest
/// quotient, over the elements, of the frozen divisor and that of a current mean square. It changes by at
/// most a tenth per update. It does not apply to the weight decay's share of the update.
at::Tensor Lamb::trust_of(const UpdateLists& lists, std::size_t i, const at::Tensor& share) const {
  const at::Tensor &frozen = lists.states[1][i], &steps = lists.states[2][i], &last = lists.states[5][i];
  const at::Tensor warmup = at::full_like(steps, static_cast<double>(factors_.variance_steps));
  at::Tensor factor =
      (adam_divisor(frozen, warmup, factors_) / adam_divisor(lists.states[3][i], steps, factors_)).max();
  factor = (factor * share + (1 - share)).clamp(kMinFactor, kMaxFactor);
  last.copy_(at::minimum(at::maximum(factor, last * (1 - kFactorStep)), last * (1 + kFactorStep)));
  const at::Tensor correction = 1 - at::pow(kTrustBeta, warmup);
  return lists.states[4][i] / correction * last;
}

}  // namespace trireme::optim
