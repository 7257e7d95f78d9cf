#include "trireme/model/convolution_scope.h"

#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>

#include "trireme/model/internal/convolution_kernels.h"

namespace trireme::model {
namespace {

/// Of the innermost scope of this thread; null: none. Backward runs on the thread that calls it.
thread_local const ConvolutionChoice* chosen = nullptr;

bool is_plain(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat && tensor.layout() == at::kStrided && tensor.dim() == 4 &&
         tensor.suggest_memory_format() == at::MemoryFormat::Contiguous;
}

bool all_are(at::IntArrayRef values, std::int64_t value) {
  return std::all_of(values.begin(), values.end(), [&](std::int64_t each) { return each == value; });
}

bool takes_onednn(const at::Tensor& input, const at::Tensor& weight, const Geometry& geometry) {
  if (chosen == nullptr || geometry.transposed || !is_plain(input) || !is_plain(weight) ||
      !all_are(geometry.dilation, 1) || !all_are(geometry.padding, 0) || !all_are(geometry.stride, 1)) {
    return false;
  }
  return chosen->takes_onednn({.batch = input.size(0),
                               .in = weight.size(1),
                               .out = weight.size(0),
                               .height = input.size(2),
                               .width = input.size(3),
                               .kernel_height = weight.size(2),
                               .kernel_width = weight.size(3),
                               .stride = 1,
                               .groups = geometry.groups,
                               .threads = at::get_num_threads()});
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, at::IntArrayRef stride, at::IntArrayRef padding,
                       at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
                       std::int64_t groups) {
  const Geometry geometry{stride, padding, dilation, transposed, output_padding, groups};
  return takes_onednn(input, weight, geometry) ? onednn_convolution(input, weight, bias, geometry)
                                               : aten_convolution(input, weight, bias, geometry);
}

ConvolutionGradients convolution_backward(const at::Tensor& grad_output, const at::Tensor& input,
                                          const at::Tensor& weight, at::OptionalIntArrayRef bias_sizes,
                                          at::IntArrayRef stride, at::IntArrayRef padding,
                                          at::IntArrayRef dilation, bool transposed,
                                          at::IntArrayRef output_padding, std::int64_t groups,
                                          std::array<bool, 3> output_mask) {
  const Geometry geometry{stride, padding, dilation, transposed, output_padding, groups};
  return takes_onednn(input, weight, geometry)
             ? onednn_gradients(grad_output, input, weight, geometry, output_mask)
             : aten_gradients(grad_output, input, weight, bias_sizes, geometry, output_mask);
}

void install_kernels() {
  // Both operators have no kernel of their own for the CPU: these come before the composite ones.
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  static const bool kInstalled = [] {
    library.impl("convolution", TORCH_FN(convolution));
    library.impl("convolution_backward", TORCH_FN(convolution_backward));
    return true;
  }();
  static_cast<void>(kInstalled);
}

}  // namespace

ConvolutionScope::ConvolutionScope(const ConvolutionChoice& choice) : choice_(choice), outer_(chosen) {
  if (!choice_.is_atens()) install_kernels();
  chosen = &choice_;
}

ConvolutionScope::~ConvolutionScope() { chosen = outer_; }

}  // namespace trireme::model
