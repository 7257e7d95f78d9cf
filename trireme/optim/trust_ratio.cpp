#include "trireme/optim/internal/trust_ratio.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

namespace trireme::optim {

TensorVector trust_ratios(const TensorVector& values, const TensorVector& updates, double coefficient,
                          double weight_decay) {
  // Norms of half-precision tensors are summed and kept in f32.
  const at::ScalarType type = at::toOpMathType(values.front().scalar_type());
  const at::Tensor value_norms = at::stack(at::_foreach_norm(values, 2, type));
  const at::Tensor update_norms = at::stack(at::_foreach_norm(updates, 2, type));
  const at::Tensor ratios = coefficient * value_norms / (update_norms + weight_decay * value_norms);
  const at::Tensor defined = (value_norms > 0).logical_and(update_norms > 0);
  return at::where(defined, ratios, at::ones_like(ratios)).unbind();
}

}  // namespace trireme::optim
