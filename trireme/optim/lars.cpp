#include "trireme/optim/lars.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sub.h>

#include "trireme/optim/internal/trust_ratio.h"
#include "trireme/optim/internal/weight_decay.h"

namespace trireme::optim {

Lars::Lars(const OptimizerOptions& options)
    : momentum_(options.momentum.value()), trust_coefficient_(options.trust_coefficient) {
  require_fraction(options, "momentum", momentum_);
  require_positive(options, "trust_coefficient", trust_coefficient_);
}

std::vector<StateTensor> Lars::states() const {
  if (momentum_ == 0) return {};
  return {{.name = "momentum"}};
}

void Lars::update(UpdateLists& lists, const GroupSettings& group, double lr) const {
  TensorVector directions = with_l2(lists, group.weight_decay);
  if (group.adaptive) {
    directions = at::_foreach_mul(
        directions, trust_ratios(lists, lists.gradients, trust_coefficient_, group.weight_decay));
  }
  if (lists.states.empty()) {
    at::_foreach_add_(lists.values, directions, -lr);
    return;
  }
  const TensorVector& momentum = lists.states[0];
  at::_foreach_mul_(momentum, momentum_);
  at::_foreach_add_(momentum, directions, lr);
  at::_foreach_sub_(lists.values, momentum);
}

}  // namespace trireme::optim
