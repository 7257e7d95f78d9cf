#pragma once
// The state of libtorch's own objects as named tensors, the content of checkpoints: of a module, of an
// optimizer of torch::optim, of a generator. For custom training loops; loop_checkpoints.h saves and restores
// all of them over ranks. Functions without state; not while another thread uses the objects.

#include <ATen/core/Generator.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "trireme/checkpoint/safetensors.h"
#include "trireme/optim/optimizer.h"

namespace trireme::checkpoint {

/// Parameters and buffers by their names; shared, not copied.
TensorMap state_of(const torch::nn::Module& module);

/// Copies into the module's tensors. Throws DataError, and changes nothing, unless the names and shapes are
/// the module's; `source` names their origin in the message.
void restore(torch::nn::Module& module, const TensorMap& state, const std::string& source = "the state");

/// State of Adam, AdamW, SGD, RMSprop or Adagrad for the module's parameters: "exp_avg/fc1.weight", shared,
/// "step/fc1.weight" and the rate of each group, "lr/0". Parameters that no step has reached have no state.
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

/// Throws what restore() would throw for a state of these names and dtypes, and changes nothing.
void check_fits(const trireme::optim::NamedTensors& parameters, torch::optim::Optimizer& optimizer,
                const TensorMap& state, const std::string& source = "the state");

at::Tensor state_of(at::Generator generator);
void restore(at::Generator generator, const at::Tensor& state);

}  // namespace trireme::checkpoint
