#include "trireme/model/resnet.h"

#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>

#include <cmath>

#include "trireme/base/text.h"
#include "trireme/model/initialise.h"

namespace trireme::model {
namespace {

namespace nn = torch::nn;

nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

/// Convolutions with batch norm after each and ReLU between, the input added before the last ReLU.
class Block : public nn::Module {
 public:
  struct Shape {
    std::int64_t in, planes, stride;
    bool bottleneck;
    std::int64_t out() const { return bottleneck ? 4 * planes : planes; }
  };

  explicit Block(const Shape& shape) {
    if (shape.bottleneck) {
      add(shape.in, shape.planes, 1, 1);
      add(shape.planes, shape.planes, 3, shape.stride);
      add(shape.planes, shape.out(), 1, 1);
    } else {
      add(shape.in, shape.planes, 3, shape.stride);
      add(shape.planes, shape.planes, 3, 1);
    }
    if (shape.stride == 1 && shape.in == shape.out()) return;
    downsample_ = register_module(
        "downsample",
        nn::Sequential(convolution(shape.in, shape.out(), 1, shape.stride), nn::BatchNorm2d(shape.out())));
  }

  at::Tensor forward(const at::Tensor& input) {
    at::Tensor values = input;
    for (std::size_t i = 0; i < convolutions_.size(); ++i) {
      values = norms_[i]->forward(convolutions_[i]->forward(values));
      if (i + 1 < convolutions_.size()) values.relu_();
    }
    return values.add_(downsample_ ? downsample_->forward(input) : input).relu_();
  }

 private:
  void add(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride) {
    const std::size_t number = convolutions_.size() + 1;
    convolutions_.push_back(register_module(text("conv", number), convolution(in, out, kernel, stride)));
    norms_.push_back(register_module(text("bn", number), nn::BatchNorm2d(out)));
  }

  std::vector<nn::Conv2d> convolutions_;
  std::vector<nn::BatchNorm2d> norms_;
  nn::Sequential downsample_{nullptr};
};

}  // namespace

ResNet::ResNet(const ResNetOptions& options)
    : conv1_(nn::Conv2dOptions(options.channels, width_, 7).stride(2).padding(3).bias(false)), bn1_(width_) {
  register_module("conv1", conv1_);
  register_module("bn1", bn1_);
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    stages_[stage] = register_module(text("layer", stage + 1), make_stage(options, stage));
  }
  fc_ = register_module("fc", nn::Linear(width_, options.num_classes));
}

nn::Sequential ResNet::make_stage(const ResNetOptions& options, std::size_t stage) {
  nn::Sequential blocks;
  for (int i = 0; i < options.blocks[stage]; ++i) {
    const Block::Shape shape{.in = width_,
                             .planes = std::int64_t{64} << stage,
                             .stride = stage > 0 && i == 0 ? 2 : 1,
                             .bottleneck = options.bottleneck};
    blocks->push_back(Block(shape));
    width_ = shape.out();
  }
  return blocks;
}

at::Tensor ResNet::stem(const at::Tensor& input) {
  return at::max_pool2d(bn1_->forward(conv1_->forward(input)).relu_(), {3, 3}, {2, 2}, {1, 1});
}

at::Tensor ResNet::forward(const at::Tensor& input) {
  at::Tensor values = stem(input);
  for (auto& stage : stages_) values = stage->forward(values);
  return fc_->forward(values.mean({2, 3}));
}

std::vector<Layer> ResNet::layers() {
  std::vector<Layer> chain = {make_layer(*this, "stem", {conv1_.ptr(), bn1_.ptr()},
                                         [this](const at::Tensor& input) { return stem(input); })};
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    for (const auto& child : layers_of(stages_[stage])) {
      chain.push_back(
          make_layer(*this, text("layer", stage + 1, ".", child.name), child.modules, child.forward));
    }
  }
  chain.push_back(make_layer(*this, "fc", {fc_.ptr()}, [this](const at::Tensor& input) {
    return fc_->forward(input.mean({2, 3}));
  }));
  return chain;
}

void ResNet::initialise(std::uint64_t seed) {
  for (const auto& parameter : named_parameters()) {
    const std::string& name = parameter.key();
    const at::Tensor& value = parameter.value();
    if (name.starts_with("fc.")) {
      fill_uniform(value, 1 / std::sqrt(static_cast<double>(fc_->options.in_features())), seed, name);
    } else if (value.dim() == 4) {
      const double fan_out = static_cast<double>(value.numel()) / static_cast<double>(value.size(1));
      fill_normal(value, std::sqrt(2 / fan_out), seed, name);
    } else {
      fill_constant(value, name.ends_with("weight") ? 1 : 0);
    }
  }
}

}  // namespace trireme::model
