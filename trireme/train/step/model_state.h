#pragma once
// Parameters and buffers of a module by name, as files hold them. Tensors are shared, not copied.

#include <torch/nn/module.h>

#include "trireme/checkpoint/safetensors.h"

namespace trireme::train {

checkpoint::TensorMap state_of(const torch::nn::Module& module);

}  // namespace trireme::train
