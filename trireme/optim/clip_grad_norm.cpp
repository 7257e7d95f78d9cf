#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include "trireme/base/error.h"
#include "trireme/optim/norms.h"
#include "trireme/optim/optimizer.h"
#include "trireme/optim/wrapped_parameter.h"

namespace trireme::optim {

namespace {

std::vector<at::Tensor> gradients_of(const NamedTensors& parameters) {
  std::vector<at::Tensor> gradients;
  for (const auto& [name, parameter] : parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  return gradients;
}

}  // namespace

double clip_grad_norm(const NamedTensors& parameters, double max_norm) {
  for (const auto& [name, parameter] : parameters) {
    const auto wrapper = wrapper_of(parameter);
    require(wrapper == nullptr, "parameter '", name, "' belongs to a ", wrapper ? wrapper->name : "",
            ", of which each rank has a part: the norm of one rank's gradients is ",
            "not that of the model; call clip_grad_norm(max_norm) of that object, on all ranks");
  }
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  // One device-to-host copy for all parameters.
  double norm = 0;
  if (!gradients.empty()) {
    std::vector<at::Tensor> norms = norms_of(gradients);
    for (at::Tensor& each : norms) each = each.to(norms.front().scalar_type());
    norm = norm_of_norms(at::stack(norms)).item<double>();
  }
  clip_to_norm(parameters, norm, max_norm);
  return norm;
}

void clip_to_norm(const NamedTensors& parameters, double norm, double max_norm) {
  require(max_norm > 0, "the norm to clip gradients to must be positive, not ", max_norm);
  const at::NoGradGuard no_grad;
  // The margin 1e-6 is PyTorch's. A NaN norm leaves the gradients as they are: the caller handles it.
  const double factor = max_norm / (norm + 1e-6);
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  if (factor < 1 && !gradients.empty()) at::_foreach_mul_(gradients, factor);
}

void clip_to_norm(const NamedTensors& parameters, const at::Tensor& norm, double max_norm) {
  // On the CPU, reading the norm costs nothing, and may save a pass over the gradients.
  if (norm.is_cpu()) return clip_to_norm(parameters, norm.item<double>(), max_norm);
  require(max_norm > 0, "the norm to clip gradients to must be positive, not ", max_norm);
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  if (gradients.empty()) return;
  const at::Tensor factor = (norm.to(at::kDouble) + 1e-6).reciprocal() * max_norm;
  const at::Tensor at_most_one = at::where(factor < 1, factor, at::ones_like(factor));
  const at::ScalarType type = gradients.front().scalar_type();
  if (at::isReducedFloatingType(type)) {
    // In half precision the factor itself would be rounded, possibly to 0.
    for (const at::Tensor& gradient : gradients) gradient.copy_(gradient.to(at::kFloat) * at_most_one);
  } else {
    at::_foreach_mul_(gradients, at_most_one.to(type));
  }
}

}  // namespace trireme::optim
