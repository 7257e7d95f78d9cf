#include "trireme/optim/moving_average.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_lerp.h>

#include <utility>

#include "trireme/base/error.h"

namespace trireme::optim {

ExponentialMovingAverage::ExponentialMovingAverage(NamedTensors parameters, double decay) : decay_(decay) {
  require(decay >= 0 && decay < 1, "the decay of a moving average must be in [0, 1), not ", decay);
  for (auto& [name, parameter] : parameters) {
    // The increment of a step is too small for half precision.
    averages_.push_back(parameter.detach().to(at::toOpMathType(parameter.scalar_type()),
                                              /*non_blocking=*/false, /*copy=*/true));
    parameters_.push_back(std::move(parameter));
    names_.push_back(std::move(name));
  }
  set_aside_.resize(parameters_.size());
}

void ExponentialMovingAverage::update(const at::Tensor& leave_out) {
  require_not_swapped("updated");
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> values;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    values.push_back(parameters_[i].to(averages_[i].scalar_type()));  // no copy if the type is the same
  if (averages_.empty()) return;
  if (!leave_out.defined()) return at::_foreach_lerp_(averages_, values, 1 - decay_);
  const at::Tensor weight = (1 - leave_out) * (1 - decay_);
  at::_foreach_lerp_(averages_, values, std::vector<at::Tensor>(averages_.size(), weight));
}

std::map<std::string, at::Tensor> ExponentialMovingAverage::state() {
  require_not_swapped("saved or restored");
  std::map<std::string, at::Tensor> result;
  for (std::size_t i = 0; i < names_.size(); ++i) result["average/" + names_[i]] = averages_[i];
  return result;
}

void ExponentialMovingAverage::require_not_swapped(const char* what) const {
  require(!swapped_, "a moving average cannot be ", what,
          " while it is swapped in: the parameters hold the averages until the scope of swap_in ends");
}

/// Swaps values with the averages. If an average is wider than its parameter, the swap would round it. So the
/// parameter's own values are set aside instead.
void ExponentialMovingAverage::exchange() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const bool is_wider = parameters_[i].scalar_type() != averages_[i].scalar_type();
    if (is_wider && swapped_) {
      parameters_[i].copy_(std::exchange(set_aside_[i], at::Tensor()));
      continue;
    }
    at::Tensor own = parameters_[i].clone();
    parameters_[i].copy_(averages_[i]);
    if (is_wider)
      set_aside_[i] = std::move(own);
    else
      averages_[i].copy_(own);
  }
}

ExponentialMovingAverage::SwapScope::SwapScope(ExponentialMovingAverage& average) : average_(average) {
  average_.require_not_swapped("swapped in again");
  average_.exchange();
  average_.swapped_ = true;
}

ExponentialMovingAverage::SwapScope::~SwapScope() {
  average_.exchange();
  average_.swapped_ = false;
}

}  // namespace trireme::optim
