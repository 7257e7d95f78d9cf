#include "trireme/model/internal/convolution_kernels.h"

#include <ATen/native/ConvUtils.h>
#include <ATen/ops/_convolution.h>
#include <ATen/ops/convolution_backward_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/mkldnn_convolution.h>

#include "trireme/base/error.h"
#include "trireme/model/internal/convolution_product.h"

namespace trireme::model {
namespace {

at::Tensor atens(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                 const Geometry& geometry) {
  // The last four arguments are flags of cuDNN.
  return at::_convolution(input, weight, bias, geometry.stride, geometry.padding, geometry.dilation,
                          geometry.transposed, geometry.output_padding, geometry.groups, false, false, false,
                          false);
}

ConvolutionGradients atens_gradients(const BackwardOf& of, const Geometry& geometry,
                                     std::array<bool, 3> output_mask) {
  return at::compositeexplicitautograd::convolution_backward(
      of.grad_output, of.input, of.weight, of.bias_sizes, geometry.stride, geometry.padding,
      geometry.dilation, geometry.transposed, geometry.output_padding, geometry.groups, output_mask);
}

at::Tensor onednns(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                   const Geometry& geometry) {
  const at::MemoryFormat format = input.suggest_memory_format();
  return at::mkldnn_convolution(input.contiguous(format), weight.contiguous(format), bias, geometry.padding,
                                geometry.stride, geometry.dilation, geometry.groups);
}

ConvolutionGradients onednns_gradients(const BackwardOf& of, const Geometry& geometry,
                                       std::array<bool, 3> output_mask) {
  const at::MemoryFormat format = of.input.suggest_memory_format();
  return at::native::mkldnn_convolution_backward_stub(
      at::kCPU, of.input.contiguous(format), of.grad_output.contiguous(format), of.weight.contiguous(format),
      geometry.padding, geometry.stride, geometry.dilation, geometry.groups, output_mask);
}

ConvolutionGradients product_gradients(const BackwardOf& of, const Geometry& geometry,
                                       std::array<bool, 3> output_mask) {
  ConvolutionGradients gradients;
  auto& [of_input, of_weight, of_bias] = gradients;
  if (output_mask[0]) of_input = product_gradient_of_input(of.grad_output, of.input, of.weight, geometry);
  if (output_mask[1]) of_weight = product_gradient_of_weight(of.grad_output, of.input, of.weight, geometry);
  if (output_mask[2]) of_bias = of.grad_output.sum({0, 2, 3});
  return gradients;
}

}  // namespace

at::Tensor convolution_by(ConvolutionKernel kernel, const at::Tensor& input, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias, const Geometry& geometry) {
  switch (kernel) {
    case ConvolutionKernel::kAten:
      return atens(input, weight, bias, geometry);
    case ConvolutionKernel::kOnednn:
      return onednns(input, weight, bias, geometry);
    case ConvolutionKernel::kProduct:
      return product_convolution(input, weight, bias, geometry);
  }
  throw InternalError("a convolution by no kernel");
}

ConvolutionGradients gradients_by(ConvolutionKernel kernel, const BackwardOf& of, const Geometry& geometry,
                                  std::array<bool, 3> output_mask) {
  switch (kernel) {
    case ConvolutionKernel::kAten:
      return atens_gradients(of, geometry, output_mask);
    case ConvolutionKernel::kOnednn:
      return onednns_gradients(of, geometry, output_mask);
    case ConvolutionKernel::kProduct:
      return product_gradients(of, geometry, output_mask);
  }
  throw InternalError("gradients of a convolution by no kernel");
}

}  // namespace trireme::model
