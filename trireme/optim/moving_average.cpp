#include "trireme/optim/moving_average.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_lerp.h>

#include "trireme/base/error.h"

namespace trireme::optim {

ExponentialMovingAverage::ExponentialMovingAverage(NamedTensors parameters, double decay) : decay_(decay) {
  require(decay >= 0 && decay < 1, "the decay of a moving average must be in [0, 1), not ", decay);
  for (auto& [name, parameter] : parameters) {
    averages_.push_back(parameter.detach().clone());
    parameters_.push_back(std::move(parameter));
    names_.push_back(std::move(name));
  }
}

void ExponentialMovingAverage::update() {
  require_not_swapped("updated");
  const at::NoGradGuard no_grad;
  if (!averages_.empty()) at::_foreach_lerp_(averages_, parameters_, 1 - decay_);
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

void ExponentialMovingAverage::exchange() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor parameter = parameters_[i].clone();
    parameters_[i].copy_(averages_[i]);
    averages_[i].copy_(parameter);
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
