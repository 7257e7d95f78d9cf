#pragma once
// A model as a chain of layers: what a pipeline cuts into stages. The model's forward is the layers' forwards
// one after the other; the model takes one tensor, and its output is the first that the last layer returns. A
// layer shares the model's parameters and buffers and keeps their names, so gradients, checkpoints and
// messages name them as the whole model does.

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme::model {

using Tensors = std::vector<at::Tensor>;

struct Layer {
  std::string name;  ///< "transformer.h.3", for messages
  std::function<at::Tensor(const at::Tensor&)> forward;
  /// In the place of `forward` for a layer that gets or returns several tensors, or skips. It gets what the
  /// layer before returned without that one's skips, and behind those `takes`, in their order; it returns at
  /// least one tensor for the next layer, and behind those `gives`. Some may be whole numbers or need no
  /// gradient (masks, positions).
  std::function<Tensors(const Tensors&)> forward_all = nullptr;
  std::vector<std::shared_ptr<torch::nn::Module>> modules = {};  ///< follow train() and eval()
  std::vector<std::pair<std::string, at::Tensor>> parameters = {};
  std::vector<std::pair<std::string, at::Tensor>> buffers = {};
  std::vector<std::string> takes = {};  ///< names of tensors that layers before this one give
  std::vector<std::string> gives = {};  ///< names of tensors for layers that are no neighbours
};

/// A layer of `model`: parameters and buffers are those of the given modules, named as in the model. A module
/// may be part of several layers (tied weights).
Layer make_layer(const torch::nn::Module& model, std::string name,
                 std::vector<std::shared_ptr<torch::nn::Module>> modules,
                 std::function<at::Tensor(const at::Tensor&)> forward);
/// The same for a layer of several tensors; `forward` is its forward_all.
Layer make_layer(const torch::nn::Module& model, std::string name,
                 std::vector<std::shared_ptr<torch::nn::Module>> modules,
                 std::function<Tensors(const Tensors&)> forward);

/// One layer per child: "0", "1", ... Each child maps one tensor to one tensor.
std::vector<Layer> layers_of(const torch::nn::Sequential& chain);

}  // namespace trireme::model
