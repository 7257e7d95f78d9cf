#include "trireme/optim/adagrad.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adagrad.h>

namespace trireme::optim {

Adagrad::Adagrad(const OptimizerOptions& options) : eps_(options.eps.value()) {
  require_positive(options, "eps", eps_);
}

std::vector<StateTensor> Adagrad::states() const {
  return {{.name = "sum"}, {.name = "step", .form = StateTensor::Form::kNumber}};
}

void Adagrad::update(UpdateLists& lists, const GroupSettings& group, double lr) const {
  const TensorVector &sums = lists.states[0], &steps = lists.states[1];
  at::_foreach_add_(steps, 1);
  at::_fused_adagrad_(lists.values, lists.gradients, sums, steps, lr, /*lr_decay=*/0, group.weight_decay,
                      eps_, /*maximize=*/false);
}

}  // namespace trireme::optim
