#include "trireme/optim/sgd.h"

#include <ATen/ops/_fused_sgd.h>

#include "trireme/base/error.h"

namespace trireme::optim {

Sgd::Sgd(const OptimizerOptions& options)
    : momentum_(options.momentum.value()), nesterov_(options.nesterov.value()) {
  require_fraction(options, "momentum", momentum_);
  require(!nesterov_ || momentum_ > 0, "the momentum of ", options.name,
          " must be above 0 with nesterov, not 0; set a momentum or leave nesterov out");
}

std::vector<StateTensor> Sgd::states() const {
  if (momentum_ == 0) return {};
  return {{.name = "momentum"}};
}

void Sgd::update(UpdateLists& lists, const GroupSettings& group, double lr) const {
  const TensorVector momentum = lists.states.empty() ? TensorVector() : lists.states[0];
  const auto apply = [&](const auto& rate) {
    at::_fused_sgd_(lists.values, lists.gradients, momentum, group.weight_decay, momentum_, rate,
                    /*dampening=*/0, nesterov_, /*maximize=*/false, /*is_first_step=*/false,
                    /*grad_scale=*/{}, lists.leave_out);
  };
  lists.lr ? apply(*lists.lr) : apply(lr);
}

}  // namespace trireme::optim
