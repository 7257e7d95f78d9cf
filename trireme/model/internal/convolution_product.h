#pragma once
// A convolution as one matrix product over a whole batch (Chellapilla et al. 2006, "High performance
// convolutional neural networks for document processing"): the patches of the kernel are copied as rows, and
// the weights are multiplied by them. Rows are pixels, so inputs and outputs have the memory order (batch,
// height, width, channels), and a 1x1 kernel with stride 1 needs no copy. Small planes gain: their samples
// are not multiplied one by one. f32 on the CPU, without groups and dilation; weights have PyTorch's order.

#include "trireme/model/internal/convolution_kernels.h"

namespace trireme::model {

/// input (batch, in, height, width), weight (out, in, kernel height, kernel width), bias (out): the output in
/// channels_last. Cost: a patch matrix, unless the kernel is 1x1 with stride 1. Its rows are batch * out
/// height * out width, its columns in * kernel height * kernel width.
at::Tensor product_convolution(const at::Tensor& input, const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias, const Geometry& geometry);

/// Gradients of input, in channels_last, and of weight, contiguous, by the gradient of the output.
at::Tensor product_gradient_of_input(const at::Tensor& grad_output, const at::Tensor& input,
                                     const at::Tensor& weight, const Geometry& geometry);
at::Tensor product_gradient_of_weight(const at::Tensor& grad_output, const at::Tensor& input,
                                      const at::Tensor& weight, const Geometry& geometry);

}  // namespace trireme::model
