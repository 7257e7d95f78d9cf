#pragma once
// A multi-layer perceptron: flatten, then Linear and ReLU per hidden layer, then Linear to the logits.

#include <torch/nn/modules/linear.h>

#include "trireme/model/model.h"

namespace trireme::model {

class Mlp : public Model {
 public:
  /// Layers "fc1", "fc2", ..., one more than `hidden` has entries.
  Mlp(std::int64_t num_inputs, const std::vector<std::int64_t>& hidden, std::int64_t num_classes);
  /// Of the input, the hidden layers and the logits.
  std::vector<std::int64_t> widths() const;
  at::Tensor forward(const at::Tensor& input) override;
  void initialise(std::uint64_t seed) override;
  std::vector<Layer> layers() override;

 private:
  std::vector<torch::nn::Linear> layers_;
};

}  // namespace trireme::model
