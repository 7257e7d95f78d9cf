#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/sin.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "tests/support/paths.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/model/model.h"

namespace trireme::model {
namespace {

/// Loads PyTorch's parameters into our model by name and compares logits, loss and every gradient.
void compare(const ModelOptions& options) {
  const checkpoint::TensorMap reference =
      checkpoint::load_safetensors(std::filesystem::path(test::checkout("tests/parity/data")) /
                                   ("model_" + options.name + ".safetensors"))
          .tensors;
  const auto model = make_model(options, {1, 12, 12}, 10, 1);
  {
    const at::NoGradGuard no_grad;
    for (auto& parameter : model->named_parameters()) {
      ASSERT_TRUE(reference.contains("parameter/" + parameter.key())) << parameter.key();
      parameter.value().copy_(reference.at("parameter/" + parameter.key()));
    }
  }
  const at::Tensor logits = model->forward(reference.at("input"));
  const at::Tensor loss = at::cross_entropy_loss(logits, reference.at("target"));
  loss.backward();
  // The same sums of a few hundred products, added in another order.
  EXPECT_TRUE(logits.allclose(reference.at("logits"), 1e-5, 1e-6));
  EXPECT_TRUE(loss.allclose(reference.at("loss"), 1e-5, 1e-6));
  for (const auto& parameter : model->named_parameters()) {
    EXPECT_TRUE(parameter.value().grad().allclose(reference.at("gradient/" + parameter.key()), 1e-4, 1e-6))
        << parameter.key();
  }
}

/// As in model_reference.py.
at::Tensor wave(const std::string& name, const at::Tensor& parameter) {
  const at::Tensor values =
      at::sin(0.7 * at::arange(parameter.numel(), at::kDouble) + static_cast<double>(name.size()));
  if (parameter.dim() > 1) {
    const std::int64_t fan_in = parameter.numel() / parameter.size(0);
    return (values * std::sqrt(2 / static_cast<double>(fan_in))).to(at::kFloat).view(parameter.sizes());
  }
  return (0.1 * values + (name.ends_with("weight") ? 1 : 0)).to(at::kFloat);
}

/// Our model with wave() as parameters gives PyTorch's logits, loss and gradients. An f32 forward pass is
/// accurate to about 1e-4. With batch norm over few values, f32 gradients depend on the processor, so
/// gradients are compared in f64.
void compare_large(const ModelOptions& options, const std::vector<std::int64_t>& input_shape,
                   std::int64_t num_classes) {
  const checkpoint::TensorMap reference =
      checkpoint::load_safetensors(std::filesystem::path(test::checkout("tests/parity/data")) /
                                   ("model_" + options.name + ".safetensors"))
          .tensors;
  const auto model = make_model(options, input_shape, num_classes, 1);
  std::size_t num_parameters = 0;
  for (auto& parameter : model->named_parameters()) {
    const at::NoGradGuard no_grad;
    ASSERT_TRUE(reference.contains("gradient_norm/" + parameter.key())) << parameter.key();
    parameter.value().copy_(wave(parameter.key(), parameter.value()));
    ++num_parameters;
  }
  EXPECT_EQ(reference.size(), 4 + 2 * num_parameters) << "PyTorch's model has other parameters";
  const at::Tensor input = reference.at("input");
  const at::Tensor logits = model->forward(input);
  EXPECT_TRUE(logits.allclose(reference.at("logits"), 1e-3, 1e-3))
      << (logits - reference.at("logits")).abs().max();
  model->to(at::kDouble);
  const at::Tensor exact = model->forward(input.is_floating_point() ? input.to(at::kDouble) : input);
  const at::Tensor loss = at::cross_entropy_loss(exact.flatten(0, -2), reference.at("target"));
  loss.backward();
  EXPECT_TRUE(loss.to(at::kFloat).allclose(reference.at("loss"), 1e-6));
  for (const auto& parameter : model->named_parameters()) {
    const at::Tensor gradient = parameter.value().grad();
    const at::Tensor norm = reference.at("gradient_norm/" + parameter.key());
    EXPECT_TRUE(gradient.norm().to(at::kFloat).allclose(norm, 1e-5, 1e-9)) << parameter.key();
    const double typical = norm.item<double>() / std::sqrt(static_cast<double>(gradient.numel()));
    EXPECT_TRUE(gradient.flatten()
                    .slice(0, 0, 8)
                    .to(at::kFloat)
                    .allclose(reference.at("gradient_begin/" + parameter.key()), 1e-5, 1e-5 * typical))
        << parameter.key();
  }
}

TEST(ModelParity, Resnet18MatchesPyTorchUnderTorchvisionNames) {
  compare_large({.name = "resnet18"}, {3, 64, 64}, 10);
}

TEST(ModelParity, Resnet50MatchesPyTorchUnderTorchvisionNames) {
  compare_large({.name = "resnet50"}, {3, 64, 64}, 10);
}

TEST(ModelParity, GptMatchesPyTorchUnderNanogptNames) {
  compare_large({.name = "gpt", .layers = 2, .heads = 4, .width = 32}, {16}, 65);
}

TEST(ModelParity, MlpMatchesPyTorchOnSameLayers) { compare({.name = "mlp", .hidden = {12}}); }
TEST(ModelParity, CnnMatchesPyTorchOnSameLayers) { compare({.name = "cnn"}); }

}  // namespace
}  // namespace trireme::model
