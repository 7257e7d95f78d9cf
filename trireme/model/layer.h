#pragma once
// A model as a chain of layers, which a pipeline cuts into stages. The model's forward is the layers'
// forwards one after the other: the first gets the model's inputs, and the results of the last are its
// outputs. A layer shares the model's parameters and buffers and keeps their names, so gradients, checkpoints
// and messages name them as the whole model does.

#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/batch/fields.h"

namespace trireme::model {

using batch::Tensors;

struct Layer {
  std::string name;  ///< "transformer.h.3", for messages
  /// Gets the outputs of the previous layer without its skips, then `takes`, in their order. Returns at least
  /// one tensor for the next layer, then `gives`. Some tensors may be integers or need no gradient (masks,
  /// positions). A function of one tensor to one is accepted as well. So is one of Tensors to Tensors where
  /// the names do not matter.
  std::function<Fields(const Fields&)> forward;
  std::vector<std::shared_ptr<torch::nn::Module>> modules = {};  ///< follow train() and eval()
  std::vector<std::pair<std::string, at::Tensor>> parameters = {};
  std::vector<std::pair<std::string, at::Tensor>> buffers = {};
  std::vector<std::string> takes = {};  ///< names of tensors that layers before this one give
  std::vector<std::string> gives = {};  ///< names of tensors for layers that are no neighbours
};

/// A layer of `model`: parameters and buffers are those of the given modules, named as in the model. A module
/// may be part of several layers (tied weights). A tensor of several names goes by the first.
Layer make_layer(const torch::nn::Module& model, std::string name,
                 std::vector<std::shared_ptr<torch::nn::Module>> modules,
                 std::function<Fields(const Fields&)> forward);

/// All of theirs: running statistics.
Tensors buffers_of(const std::vector<Layer>& layers);

/// One layer per child: "0", "1", ... Each child maps one tensor to one tensor.
std::vector<Layer> layers_of(const torch::nn::Sequential& chain);

}  // namespace trireme::model
