#pragma once
// Adam whose mean square stays constant after a warm-up (1-bit Adam: Tang et al., arXiv 2102.02888, algorithm
// 1). From then on an update is linear in the gradients, so the residual of a compression may be added in a
// later step.

#include "trireme/optim/update_rule.h"

namespace trireme::optim {

struct AdamFactors {
  double beta1, beta2, eps;
  std::int64_t variance_steps;
};

/// Throws InvalidArgument: a beta outside [0, 1), eps not positive, variance_steps negative.
AdamFactors adam_factors(const OptimizerOptions& options);

/// Takes those out of `lists` that have had so many updates, by their counts, which are the `counts`-th
/// state. Both lists may end empty.
UpdateLists take_frozen(UpdateLists& lists, std::size_t counts, std::int64_t variance_steps);

/// max(1, (1 - beta1) / sqrt(1 - beta2)): Adam, whose mean square continues, moves an element by no more than
/// this times the rate (Kingma and Ba, section 2.1); 3.16 by default.
double max_adam_update(const AdamFactors& factors);

/// m = lerp(g, m, beta1), with the counts continued. Returns of each m / (1 - beta1^t) / (sqrt(v / (1 -
/// beta2^T)) + eps), T the steps of the warm-up, held to max_adam_update(): where the warm-up had hardly any
/// gradient the quotient may be of any size, and where it had none there is none: zeros. States: m, v, t.
TensorVector frozen_adam_updates(UpdateLists& lists, const AdamFactors& factors);

/// sqrt(v / (1 - beta2^t)) + eps.
at::Tensor adam_divisor(const at::Tensor& mean_square, const at::Tensor& steps, const AdamFactors& factors);

}  // namespace trireme::optim
