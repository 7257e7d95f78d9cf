#pragma once
// The kernels that a convolution on the CPU can take, called past the dispatcher.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>

#include "trireme/model/convolution_choice.h"

namespace trireme::model {

struct Geometry {
  at::IntArrayRef stride, padding, dilation;
  bool transposed = false;
  at::IntArrayRef output_padding;
  std::int64_t groups = 1;
};

/// Inputs of gradients.
struct BackwardOf {
  at::Tensor grad_output, input, weight;
  at::OptionalIntArrayRef bias_sizes;
};

/// Of input, weight and bias; those that were not asked for are undefined.
using ConvolutionGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

/// kAten: any convolution, as if called directly. Others: those of a ConvolutionShape in f32. kOnednn throws
/// where this libtorch was built without it. Outputs have the memory format of inputs, those of kProduct are
/// channels_last.
at::Tensor convolution_by(ConvolutionKernel kernel, const at::Tensor& input, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias, const Geometry& geometry);
ConvolutionGradients gradients_by(ConvolutionKernel kernel, const BackwardOf& of, const Geometry& geometry,
                                  std::array<bool, 3> output_mask);

}  // namespace trireme::model
