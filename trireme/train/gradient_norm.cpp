#include "trireme/train/gradient_norm.h"

#include <ATen/ops/_foreach_norm.h>

#include <cmath>

namespace trireme::train {

double gradient_norm(const optim::NamedTensors& parameters) {
  std::vector<at::Tensor> gradients;
  for (const auto& [name, parameter] : parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  double squares = 0;
  if (gradients.empty()) return squares;
  for (const at::Tensor& norm : at::_foreach_norm(gradients)) squares += std::pow(norm.item<double>(), 2);
  return std::sqrt(squares);
}

}  // namespace trireme::train
