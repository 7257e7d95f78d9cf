#pragma once
// Weight decay for the rules whose kernels do not do it themselves.

#include <ATen/ops/_foreach_add.h>

#include "trireme/optim/update_rule.h"

namespace trireme::optim {

/// gradient + weight_decay * value, of all; the gradients themselves when there is no decay.
inline TensorVector with_l2(const UpdateLists& lists, double weight_decay) {
  if (weight_decay == 0) return lists.gradients;
  return at::_foreach_add(lists.gradients, lists.values, weight_decay);
}

}  // namespace trireme::optim
