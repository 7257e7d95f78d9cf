#include "trireme/optim/adamw.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "trireme/base/error.h"

namespace trireme::optim {

AdamW::AdamW(const OptimizerOptions& options, NamedTensors parameters)
    : options_(options), parameters_(std::move(parameters)) {
  for (const double beta : {options.beta1, options.beta2}) {
    require(beta >= 0 && beta < 1, "the betas of adamw must be in [0, 1), not ", beta);
  }
  require(options.eps > 0, "the eps of adamw must be positive, not ", options.eps);
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : parameters_) {
    exp_avg_.push_back(at::zeros_like(parameter));
    exp_avg_sq_.push_back(at::zeros_like(parameter));
    steps_.push_back(at::zeros({}, parameter.options().dtype(at::kFloat)));
  }
}

void AdamW::step(double lr) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> values, gradients, exp_avg, exp_avg_sq, steps;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& gradient = parameters_[i].second.grad();
    if (!gradient.defined()) continue;
    values.push_back(parameters_[i].second);
    gradients.push_back(gradient);
    exp_avg.push_back(exp_avg_[i]);
    exp_avg_sq.push_back(exp_avg_sq_[i]);
    steps.push_back(steps_[i]);
  }
  if (values.empty()) return;
  at::_foreach_add_(steps, 1);
  at::_fused_adamw_(values, gradients, exp_avg, exp_avg_sq, /*max_exp_avg_sqs=*/{}, steps, lr, options_.beta1,
                    options_.beta2, options_.weight_decay, options_.eps, /*amsgrad=*/false,
                    /*maximize=*/false);
}

std::map<std::string, at::Tensor> AdamW::state() {
  std::map<std::string, at::Tensor> result;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::string& name = parameters_[i].first;
    result["exp_avg/" + name] = exp_avg_[i];
    result["exp_avg_sq/" + name] = exp_avg_sq_[i];
    result["step/" + name] = steps_[i];
  }
  return result;
}

}  // namespace trireme::optim
