#pragma once
// A user's model with a batch norm inside a block that is frozen for fine-tuning.

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <vector>

#include "trireme/model/model.h"

namespace trireme::test {

struct NormBlock : torch::nn::Module {
  NormBlock(std::int64_t inputs, std::int64_t outputs)
      : linear(register_module("linear", torch::nn::Linear(inputs, outputs))),
        norm(register_module("norm", torch::nn::BatchNorm1d(outputs))) {}
  at::Tensor forward(const at::Tensor& input) { return norm->forward(linear->forward(input)); }

  torch::nn::Linear linear;
  torch::nn::BatchNorm1d norm;
};

/// A block with a norm, and a classifier. freeze() sets only the norm to evaluation mode.
class FrozenNormModel : public model::Model {
 public:
  FrozenNormModel(std::int64_t inputs, std::int64_t classes)
      : block_(register_module("block", std::make_shared<NormBlock>(inputs, 8))),
        last_(register_module("last", torch::nn::Linear(8, classes))) {}

  at::Tensor forward(const at::Tensor& input) override {
    return last_->forward(block_->forward(input.flatten(1)).tanh());
  }
  std::vector<model::Layer> layers() override {
    return {model::make_layer(*this, "block", {block_},
                              [this](const at::Tensor& input) { return block_->forward(input.flatten(1)); }),
            model::make_layer(*this, "last", {last_.ptr()},
                              [this](const at::Tensor& values) { return last_->forward(values.tanh()); })};
  }

  void freeze() { block_->norm->eval(); }
  /// Whether all modes are as the constructor and freeze() have set them.
  bool is_frozen() const {
    return !block_->norm->is_training() && block_->is_training() && block_->linear->is_training() &&
           last_->is_training() && is_training();
  }
  /// Of the norm. Zeros until it has trained.
  const at::Tensor& running_mean() const { return block_->norm->running_mean; }

 private:
  std::shared_ptr<NormBlock> block_;
  torch::nn::Linear last_ = nullptr;
};

}  // namespace trireme::test
