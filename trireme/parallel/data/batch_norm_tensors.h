#pragma once
// The tensors of a batch norm. A value.

#include <ATen/core/Tensor.h>

namespace trireme::parallel {

/// What a batch norm has learned and counted, as in torch::nn::BatchNorm2dImpl. Tensors may be undefined.
struct BatchNormTensors {
  at::Tensor weight, bias, running_mean, running_var, num_batches_tracked;
};

}  // namespace trireme::parallel
