#pragma once
// The models we ship, by name. A model is a plain torch::nn::Module from one tensor to one, or from
// named ones to named ones; parallelism is applied to it from outside. Parameters of shipped and of deferred
// models are initialised from (seed, parameter name), so every rank and every partition makes the same ones.

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/model/layer.h"

namespace trireme::model {

/// A module that maps one tensor to one tensor (forward, loss), or several (forward_all, loss_all): it
/// overrides one form, and callers use the second.
class Model : public torch::nn::Module {
 public:
  /// input (batch, ...) -> logits (batch, num_classes); of sequences (batch, time, num_classes).
  virtual at::Tensor forward(const at::Tensor& input);
  /// The input fields of a batch -> the outputs for the objective. Default: forward of the only one.
  virtual Fields forward_all(const Fields& inputs) { return forward(inputs); }
  /// First values that depend on (seed, parameter name) only. It is called with run.seed on a registered
  /// model, and again while layers of a deferred one get their memory: a custom one fills by the functions of
  /// initialise.h, which leave other layers unchanged. Default: a model that was built with memory keeps the
  /// values of its constructor; deferred layers begin as libtorch's do (model::initialise). Throws
  /// InvalidArgument: a deferred parameter of a module that is not libtorch's, and no weight or bias.
  virtual void initialise(std::uint64_t seed);
  /// The model's own loss (objective.name = "model"): the sum over the samples of a batch, without dims.
  /// `output` is that of forward. In a pipeline it is called where the last stage is, and parameters of other
  /// stages have no values there. Default: throws InvalidArgument, as the model has none.
  virtual at::Tensor loss(const at::Tensor& output, const at::Tensor& target);
  virtual at::Tensor loss_all(const Fields& outputs, const Fields& targets) { return loss(outputs, targets); }
  /// The model as a chain of layers, for a pipeline: forward is theirs, one after the other. They use the
  /// model, which has to outlive them. Empty: it cannot be cut.
  virtual std::vector<Layer> layers() { return {}; }
};

/// The whole model as one layer, which uses it: it has to outlive the layer.
Layer whole(Model& model);
/// Its layers, or the whole where it cannot be cut.
std::vector<Layer> layers_or_whole(Model& model);

struct ModelOptions {
  std::string name = "mlp";
  std::vector<std::int64_t> hidden = {512, 512};  ///< mlp: widths of the hidden layers
  std::int64_t layers = 4;                        ///< gpt: blocks
  std::int64_t heads = 4;                         ///< gpt: attention heads per block
  std::int64_t width = 128;                       ///< gpt: of the residual stream; a multiple of heads
  std::string weights = {};                       ///< file that a run begins with; empty: from the seed
};

/// One row per model in model_table.cpp: "mlp", "cnn", "resnet18", "resnet50", "gpt". Throws InvalidArgument:
/// unknown name (nearest named), or an input shape that the model cannot take. Not collective.
std::shared_ptr<Model> make_model(const ModelOptions& options, const std::vector<std::int64_t>& input_shape,
                                  std::int64_t num_classes, std::uint64_t seed);
std::vector<std::string> model_names();

}  // namespace trireme::model
