#pragma once
// Small modules with fixed initial values, for tests of gradient reductions.

#include <ATen/ops/arange.h>
#include <ATen/ops/mse_loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <memory>

namespace trireme::test {

/// Values of both signs and different sizes that depend only on position and seed.
inline at::Tensor numbers(at::IntArrayRef shape, double seed) {
  const std::int64_t numel = c10::multiply_integers(shape);
  return (at::arange(numel, at::kFloat).add(seed).mul(12.9898)).sin().reshape(shape);
}

inline at::Tensor numbers_f64(at::IntArrayRef shape, double seed) {
  return numbers(shape, seed).to(at::kDouble);
}

inline void fill_parameters(torch::nn::Module& module, double seed = 1) {
  const at::NoGradGuard no_grad;
  for (auto& parameter : module.parameters()) parameter.copy_(numbers(parameter.sizes(), seed++).mul(0.5));
}

/// Two layers with a batch norm between them. `skip_second` excludes the second one from forward.
struct TwoLayers : torch::nn::Module {
  explicit TwoLayers(std::int64_t hidden = 5)
      : first(register_module("first", torch::nn::Linear(4, hidden))),
        norm(register_module("norm", torch::nn::BatchNorm1d(hidden))),
        second(register_module("second", torch::nn::Linear(hidden, 3))) {
    fill_parameters(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = first->forward(x).tanh();
    if (use_norm) h = norm->forward(h);
    return use_second ? second->forward(h) : h;
  }
  bool use_norm = false;
  bool use_second = true;
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear second;
};

/// The forward does not use the norm. It is frozen, so that gradient reduction ignores it.
inline std::shared_ptr<TwoLayers> model_without_norm() {
  auto model = std::make_shared<TwoLayers>();
  for (auto& parameter : model->norm->parameters()) parameter.set_requires_grad(false);
  return model;
}

inline at::Tensor mean_square(const at::Tensor& output, const at::Tensor& target) {
  return at::mse_loss(output, target);
}

}  // namespace trireme::test
