#pragma once
// Residual networks (He et al., arXiv 1512.03385, table 1) with the parameter names, shapes and order of
// torchvision's, so that its weights load: "conv1", "bn1", "layer1.0.conv1", ..., "layer2.0.downsample.0",
// "fc". As torchvision does, a bottleneck has its stride on the 3x3 convolution. Batch norm takes the
// statistics of the current micro-batch; its running ones are buffers.

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <array>

#include "trireme/model/model.h"

namespace trireme::model {

struct ResNetOptions {
  std::array<int, 4> blocks = {2, 2, 2, 2};  ///< residual blocks per stage
  bool bottleneck = false;                   ///< three convolutions per block, four times the channels out
  std::int64_t channels = 3;                 ///< of the images
  std::int64_t num_classes = 1000;
};

/// The network of a ResNetOptions; resnet18 and resnet50 are rows of the model table.
class ResNet : public Model {
 public:
  explicit ResNet(const ResNetOptions& options);
  /// (batch, channels, height, width) -> (batch, num_classes).
  at::Tensor forward(const at::Tensor& input) override;
  std::vector<Layer> layers() override;
  /// Convolutions: normal with variance 2 / fan_out (He et al., arXiv 1502.01852); batch norm: ones and
  /// zeros; the last layer as PyTorch's Linear.
  void initialise(std::uint64_t seed) override;

 private:
  /// The layers before the blocks.
  at::Tensor stem(const at::Tensor& input);
  torch::nn::Sequential make_stage(const ResNetOptions& options, std::size_t stage);

  std::int64_t width_ = 64;  ///< channels that the next block gets
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  std::array<torch::nn::Sequential, 4> stages_;
  torch::nn::Linear fc_{nullptr};
};

}  // namespace trireme::model
