#pragma once
// A layer of a chain that is measured by itself.

#include <c10/core/Device.h>

#include "trireme/batch/fields.h"
#include "trireme/model/layer.h"
#include "trireme/model/skips.h"

namespace trireme::train {

/// A layer and the skips that travel to it and on.
struct ChainLink {
  const model::Layer& layer;
  const model::SkipNames &carried, &carried_on;
  bool is_first = false;
};

/// Inputs of a layer, as leaves that need a gradient where the layer is not the first.
inline Fields leaves_for(const ChainLink& link, const Fields& inputs) {
  Fields leaves = inputs.map([](const at::Tensor& tensor) { return tensor.detach(); });
  for (const auto& [name, leaf] : leaves) {
    if (!link.is_first && leaf.is_floating_point()) leaf.requires_grad_(true);
  }
  return leaves;
}

inline c10::Device device_of(const Fields& inputs) {
  return inputs.empty() ? c10::Device(c10::kCPU) : inputs.at(0).device();
}

inline double bytes_of(const Fields& tensors) {
  double bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += static_cast<double>(tensor.nbytes());
  return bytes;
}

}  // namespace trireme::train
