#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include "trireme/base/error.h"
#include "trireme/optim/optimizer.h"

namespace trireme::optim {

double clip_grad_norm(const NamedTensors& parameters, double max_norm) {
  require(max_norm > 0, "the norm to clip gradients to must be positive, not ", max_norm);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const auto& [name, parameter] : parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  if (gradients.empty()) return 0;
  // One read back to the host for all parameters.
  const double norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients)), 2).item<double>();
  // The margin is PyTorch's; a norm that is not a number is for the caller to see, not to spread.
  const double factor = max_norm / (norm + 1e-6);
  if (factor < 1) at::_foreach_mul_(gradients, factor);
  return norm;
}

}  // namespace trireme::optim
