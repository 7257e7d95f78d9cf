#pragma once
// A model as a chain of layers: what a pipeline cuts into stages. The model's forward is the layers' forwards
// one after the other. A layer shares the model's parameters and buffers and keeps their names, so gradients,
// checkpoints and messages name them as the whole model does.

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme::model {

struct Layer {
  std::string name;  ///< "transformer.h.3", for messages
  std::function<at::Tensor(const at::Tensor&)> forward;
  std::vector<std::shared_ptr<torch::nn::Module>> modules = {};  ///< follow train() and eval()
  std::vector<std::pair<std::string, at::Tensor>> parameters = {};
  std::vector<std::pair<std::string, at::Tensor>> buffers = {};
};

/// A layer of `model`: parameters and buffers are those of the given modules, named as in the model. A module
/// may be part of several layers (tied weights).
Layer make_layer(const torch::nn::Module& model, std::string name,
                 std::vector<std::shared_ptr<torch::nn::Module>> modules,
                 std::function<at::Tensor(const at::Tensor&)> forward);

/// One layer per child: "0", "1", ... Each child maps one tensor to one tensor.
std::vector<Layer> layers_of(const torch::nn::Sequential& chain);

}  // namespace trireme::model
