#include "trireme/optim/sgd.h"

#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/zeros_like.h>

#include "trireme/base/error.h"

namespace trireme::optim {

Sgd::Sgd(const OptimizerOptions& options, NamedTensors parameters)
    : options_(options), parameters_(std::move(parameters)) {
  require(options.momentum >= 0 && options.momentum < 1, "the momentum of sgd must be in [0, 1), not ",
          options.momentum);
  require(!options.nesterov || options.momentum > 0, "nesterov needs a momentum above 0");
  if (options.momentum == 0) return;
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : parameters_) momentum_.push_back(at::zeros_like(parameter));
}

void Sgd::step(double lr) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> values, gradients, momentum;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& gradient = parameters_[i].second.grad();
    if (!gradient.defined()) continue;
    values.push_back(parameters_[i].second);
    gradients.push_back(gradient);
    if (!momentum_.empty()) momentum.push_back(momentum_[i]);
  }
  if (values.empty()) return;
  // The momentum begins as zeros, so that a first step is a step like all others.
  at::_fused_sgd_(values, gradients, momentum, options_.weight_decay, options_.momentum, lr, /*dampening=*/0,
                  options_.nesterov, /*maximize=*/false, /*is_first_step=*/false);
}

std::map<std::string, at::Tensor> Sgd::state() {
  std::map<std::string, at::Tensor> result;
  for (std::size_t i = 0; i < momentum_.size(); ++i)
    result["momentum/" + parameters_[i].first] = momentum_[i];
  return result;
}

}  // namespace trireme::optim
