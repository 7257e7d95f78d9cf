#pragma once
// The two kernels that a convolution on the CPU can take, called past the dispatcher.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>

namespace trireme::model {

struct Geometry {
  at::IntArrayRef stride, padding, dilation;
  bool transposed = false;
  at::IntArrayRef output_padding;
  std::int64_t groups = 1;
};

/// Of input, weight and bias; those that were not asked for are undefined.
using ConvolutionGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

/// As if nothing stood between ATen and its caller.
at::Tensor aten_convolution(const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const Geometry& geometry);
ConvolutionGradients aten_gradients(const at::Tensor& grad_output, const at::Tensor& input,
                                    const at::Tensor& weight, at::OptionalIntArrayRef bias_sizes,
                                    const Geometry& geometry, std::array<bool, 3> output_mask);

/// oneDNN's, for what is not transposed. Throws where this libtorch was built without it.
at::Tensor onednn_convolution(const at::Tensor& input, const at::Tensor& weight,
                              const std::optional<at::Tensor>& bias, const Geometry& geometry);
ConvolutionGradients onednn_gradients(const at::Tensor& grad_output, const at::Tensor& input,
                                      const at::Tensor& weight, const Geometry& geometry,
                                      std::array<bool, 3> output_mask);

}  // namespace trireme::model
