#pragma once
// The state of libtorch's own objects as named tensors, which is what checkpoints hold: of a module, of an
// optimizer of torch::optim, of a generator. For training loops of one's own; loop_checkpoints.h saves and
// restores all of them over ranks. Functions without state; not while another thread uses the objects.

#include <ATen/core/Generator.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "trireme/checkpoint/safetensors.h"
#include "trireme/optim/optimizer.h"

namespace trireme::checkpoint {

/// Parameters and buffers by their names; shared, not copied.
TensorMap state_of(const torch::nn::Module& module);

/// Copies into the module's tensors. Throws DataError, and changes nothing, unless the names and shapes are
/// the module's; `source` says whose they are.
void restore(torch::nn::Module& module, const TensorMap& state, const std::string& source = "the state");

/// What Adam, AdamW, SGD, RMSprop or Adagrad keeps for the module's parameters: "exp_avg/fc1.weight", shared,
/// "step/fc1.weight" and the rate of each group, "lr/0". Nothing of parameters that no step has reached.
/// Throws InvalidArgument for another type, and for a parameter that is not the module's.
TensorMap state_of(const torch::nn::Module& module, torch::optim::Optimizer& optimizer);
/// The same of an optimizer of parameters by name, such as a rank's part of a model.
TensorMap state_of(const trireme::optim::NamedTensors& parameters, torch::optim::Optimizer& optimizer);

/// The optimizer continues from there, and keeps the tensors. Throws as state_of() does; DataError where the
/// state is another type's.
void restore(const torch::nn::Module& module, torch::optim::Optimizer& optimizer, const TensorMap& state,
             const std::string& source = "the state");
void restore(const trireme::optim::NamedTensors& parameters, torch::optim::Optimizer& optimizer,
             const TensorMap& state, const std::string& source = "the state");

at::Tensor state_of(at::Generator generator);
void restore(at::Generator generator, const at::Tensor& state);

}  // namespace trireme::checkpoint
