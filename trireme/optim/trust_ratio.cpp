#include "trireme/optim/internal/trust_ratio.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "trireme/optim/norms.h"
#include "trireme/optim/tensor_parts.h"

namespace trireme::optim {

namespace {

/// `norms` (2, tensors): replaces the norm of each part with that of its whole tensor.
void make_whole(const at::Tensor& norms, const UpdateLists& lists) {
  if (lists.others == nullptr) return;
  at::Tensor are_parts = at::zeros({norms.size(1)}, at::kBool);
  bool any = false;
  for (std::size_t i = 0; i < lists.parts.size(); ++i) {
    if (lists.parts[i] == nullptr) continue;
    are_parts.data_ptr<bool>()[i] = any = true;
  }
  if (!any) return;
  are_parts = are_parts.to(norms.device());
  const at::Tensor squares = norms.to(at::kDouble).square();
  lists.others->add_up(squares);
  norms.copy_(at::where(are_parts, squares.sqrt().to(norms.scalar_type()), norms));
}

}  // namespace

TensorVector trust_ratios(const UpdateLists& lists, const TensorVector& updates, double coefficient,
                          double weight_decay) {
  const at::Tensor norms = at::stack({at::stack(norms_of(lists.values)), at::stack(norms_of(updates))});
  make_whole(norms, lists);
  const at::Tensor value_norms = norms[0], update_norms = norms[1];
  const at::Tensor ratios = coefficient * value_norms / (update_norms + weight_decay * value_norms);
  const at::Tensor defined = (value_norms > 0).logical_and(update_norms > 0);
  return at::where(defined, ratios, at::ones_like(ratios)).unbind();
}

}  // namespace trireme::optim
