#pragma once
// A small convolutional network for images of some tens of pixels: two times (3x3 convolution, ReLU, 2x2
// maximum), then two linear layers. No batch norm: the output of a sample depends on that sample alone, so
// any split of a batch gives the same gradients.

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "trireme/model/model.h"

namespace trireme::model {

class Cnn : public Model {
 public:
  /// Images (channels, height, width); height and width at least 4. Layers "conv1", "conv2", "fc1", "fc2".
  Cnn(std::int64_t channels, std::int64_t height, std::int64_t width, std::int64_t num_classes);
  at::Tensor forward(const at::Tensor& input) override;
  void initialise(std::uint64_t seed) override;
  std::vector<Layer> layers() override;

 private:
  torch::nn::Conv2d conv1_, conv2_;
  torch::nn::Linear fc1_, fc2_;
};

}  // namespace trireme::model
