#pragma once
// The common part of Trireme's batch norms and torch::nn::BatchNorm2d: options, tensors and their names.

#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/options/batchnorm.h>

namespace trireme::parallel {

/// Parameters and running statistics of a batch norm, as in torch::nn::BatchNorm2dImpl. Tensors may be
/// undefined.
struct BatchNormTensors {
  at::Tensor weight, bias, running_mean, running_var, num_batches_tracked;
};

/// Derived: the module itself.
template <class Derived>
class BatchNormModule : public torch::nn::Cloneable<Derived> {
 public:
  /// Registers new tensors, those of a new batch norm.
  void reset() override {
    const std::int64_t channels = options.num_features();
    BatchNormTensors tensors;
    if (options.affine()) {
      tensors.weight = at::ones({channels}).requires_grad_();
      tensors.bias = at::zeros({channels}).requires_grad_();
    }
    if (options.track_running_stats()) {
      tensors.running_mean = at::zeros({channels});
      tensors.running_var = at::ones({channels});
      tensors.num_batches_tracked = at::scalar_tensor(0, at::kLong);
    }
    register_tensors(tensors);
  }

  torch::nn::BatchNormOptions options;
  at::Tensor weight, bias;                                    ///< (C); undefined unless options.affine()
  at::Tensor running_mean, running_var, num_batches_tracked;  ///< undefined unless track_running_stats()

 protected:
  /// Without tensors, until reset() or register_tensors().
  explicit BatchNormModule(const torch::nn::BatchNormOptions& given) : options(given) {}
  /// These very tensors, under the names of torch::nn::BatchNorm2d.
  void register_tensors(const BatchNormTensors& tensors) {
    const auto parameter = [this](const char* name, const at::Tensor& tensor) {
      return this->register_parameter(name, tensor, tensor.defined() && tensor.requires_grad());
    };
    weight = parameter("weight", tensors.weight);
    bias = parameter("bias", tensors.bias);
    running_mean = this->register_buffer("running_mean", tensors.running_mean);
    running_var = this->register_buffer("running_var", tensors.running_var);
    num_batches_tracked = this->register_buffer("num_batches_tracked", tensors.num_batches_tracked);
  }
};

}  // namespace trireme::parallel
