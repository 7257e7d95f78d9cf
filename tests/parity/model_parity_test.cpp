#include <ATen/ops/cross_entropy_loss.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "trireme/checkpoint/safetensors.h"
#include "trireme/model/model.h"

namespace trireme::model {
namespace {

/// Loads PyTorch's parameters into our model by name and compares logits, loss and every gradient.
void compare(const ModelOptions& options) {
  const checkpoint::TensorMap reference =
      checkpoint::load_safetensors(std::filesystem::path(TRIREME_SOURCE_DIR) / "tests/parity/data" /
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
  // The same sums of some hundred products in another order.
  EXPECT_TRUE(logits.allclose(reference.at("logits"), 1e-5, 1e-6));
  EXPECT_TRUE(loss.allclose(reference.at("loss"), 1e-5, 1e-6));
  for (const auto& parameter : model->named_parameters()) {
    EXPECT_TRUE(parameter.value().grad().allclose(reference.at("gradient/" + parameter.key()), 1e-4, 1e-6))
        << parameter.key();
  }
}

TEST(ModelParity, TheMlpIsPyTorchsModelOfTheSameLayers) { compare({.name = "mlp", .hidden = {12}}); }
TEST(ModelParity, TheCnnIsPyTorchsModelOfTheSameLayers) { compare({.name = "cnn"}); }

}  // namespace
}  // namespace trireme::model
