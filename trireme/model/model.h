#pragma once
// The models we ship, by name. A model is a plain torch::nn::Module with one input and one output tensor;
// parallelism is applied to it from outside. Parameters are initialised from (seed, parameter name), so every
// rank and every partition makes the same ones.

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trireme::model {

/// A module that maps one tensor to one tensor.
class Model : public torch::nn::Module {
 public:
  /// input (batch, ...) -> logits (batch, num_classes).
  virtual at::Tensor forward(const at::Tensor& input) = 0;
};

struct ModelOptions {
  std::string name = "mlp";
  std::vector<std::int64_t> hidden = {512, 512};  ///< mlp: widths of the hidden layers
};

/// One row per model in model_table.cpp: "mlp", "cnn". Throws InvalidArgument: unknown name (nearest named),
/// or an input shape that the model cannot take. Not collective.
std::shared_ptr<Model> make_model(const ModelOptions& options, const std::vector<std::int64_t>& input_shape,
                                  std::int64_t num_classes, std::uint64_t seed);
std::vector<std::string> model_names();

}  // namespace trireme::model
