#include "trireme/model/internal/convolution_kernels.h"

#include <ATen/native/ConvUtils.h>
#include <ATen/ops/_convolution.h>
#include <ATen/ops/convolution_backward_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/mkldnn_convolution.h>

namespace trireme::model {

at::Tensor aten_convolution(const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const Geometry& geometry) {
  // The four flags are cuDNN's.
  return at::_convolution(input, weight, bias, geometry.stride, geometry.padding, geometry.dilation,
                          geometry.transposed, geometry.output_padding, geometry.groups, false, false, false,
                          false);
}

ConvolutionGradients aten_gradients(const at::Tensor& grad_output, const at::Tensor& input,
                                    const at::Tensor& weight, at::OptionalIntArrayRef bias_sizes,
                                    const Geometry& geometry, std::array<bool, 3> output_mask) {
  return at::compositeexplicitautograd::convolution_backward(
      grad_output, input, weight, bias_sizes, geometry.stride, geometry.padding, geometry.dilation,
      geometry.transposed, geometry.output_padding, geometry.groups, output_mask);
}

at::Tensor onednn_convolution(const at::Tensor& input, const at::Tensor& weight,
                              const std::optional<at::Tensor>& bias, const Geometry& geometry) {
  return at::mkldnn_convolution(input.contiguous(), weight.contiguous(), bias, geometry.padding,
                                geometry.stride, geometry.dilation, geometry.groups);
}

ConvolutionGradients onednn_gradients(const at::Tensor& grad_output, const at::Tensor& input,
                                      const at::Tensor& weight, const Geometry& geometry,
                                      std::array<bool, 3> output_mask) {
  return at::native::mkldnn_convolution_backward_stub(at::kCPU, input.contiguous(), grad_output.contiguous(),
                                                      weight.contiguous(), geometry.padding, geometry.stride,
                                                      geometry.dilation, geometry.groups, output_mask);
}

}  // namespace trireme::model
