// The layers into which a run splits its model.
#include "trireme/train/plan/placement.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

namespace trireme::train {
namespace {

/// A layer of one tensor, and one of several.
class OneAndSeveral : public model::Model {
 public:
  at::Tensor forward(const at::Tensor& input) override { return linear_->forward(linear_->forward(input)); }
  std::vector<model::Layer> layers() override {
    return {model::make_layer(*this, "one", {linear_.ptr()},
                              [this](const at::Tensor& x) { return linear_->forward(x); }),
            model::make_layer(*this, "several", {linear_.ptr()}, [this](const model::Tensors& x) {
              return model::Tensors{linear_->forward(x[0])};
            })};
  }

 private:
  torch::nn::Linear linear_ = register_module("linear", torch::nn::Linear(4, 4));
};

TEST(LayersFor, ComputeInPrecisionOfRun) {
  OneAndSeveral model;
  const std::vector<model::Layer> layers = layers_in(precision_of("bf16"), model);
  ASSERT_EQ(layers.size(), 2U);
  EXPECT_EQ(layers[0].forward(at::ones({2, 4}))->scalar_type(), at::kBFloat16);
  EXPECT_EQ(layers[1].forward({at::ones({2, 4})})->scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace trireme::train
