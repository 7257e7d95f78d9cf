#pragma once
// Parameters for libtorch's optimizers, which take no names:
//
//   torch::optim::AdamW optimizer(trireme::tensors_of(sharded.parameters()), 1e-3);

#include <vector>

#include "trireme/optim/optimizer.h"

namespace trireme::optim {

/// The tensors, in their order; they share memory and gradients.
inline std::vector<at::Tensor> tensors_of(const NamedTensors& named) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : named) tensors.push_back(tensor);
  return tensors;
}

}  // namespace trireme::optim

namespace trireme {
using optim::tensors_of;
}  // namespace trireme
