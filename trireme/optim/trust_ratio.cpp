#include "trireme/optim/internal/trust_ratio.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include "trireme/optim/norms.h"

namespace trireme::optim {

TensorVector trust_ratios(const TensorVector& values, const TensorVector& updates, double coefficient,
                          double weight_decay) {
  const at::Tensor value_norms = at::stack(norms_of(values)), update_norms = at::stack(norms_of(updates));
  const at::Tensor ratios = coefficient * value_norms / (update_norms + weight_decay * value_norms);
  const at::Tensor defined = (value_norms > 0).logical_and(update_norms > 0);
  return at::where(defined, ratios, at::ones_like(ratios)).unbind();
}

}  // namespace trireme::optim
