#include "trireme/model/convolution_rule.h"

#include <ATen/Parallel.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/_convolution.h>
#include <ATen/ops/convolution_backward_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/mkldnn_convolution.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <tuple>

namespace trireme::model {
namespace {

using Ints = at::IntArrayRef;
using OptionalTensor = std::optional<at::Tensor>;

struct Geometry {
  Ints stride, padding, dilation;
  bool transposed;
  Ints output_padding;
  std::int64_t groups;
};

bool is_plain(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat && tensor.layout() == at::kStrided && tensor.dim() == 4 &&
         tensor.suggest_memory_format() == at::MemoryFormat::Contiguous;
}

bool all_are(Ints values, std::int64_t value) {
  return std::all_of(values.begin(), values.end(), [&](std::int64_t each) { return each == value; });
}

bool takes_onednn(const at::Tensor& input, const at::Tensor& weight, const Geometry& geometry) {
  if (geometry.transposed || !is_plain(input) || !is_plain(weight) || !all_are(geometry.dilation, 1) ||
      !all_are(geometry.padding, 0) || !all_are(geometry.stride, 1)) {
    return false;
  }
  return prefers_onednn({.batch = input.size(0),
                         .height = input.size(2),
                         .width = input.size(3),
                         .kernel_height = weight.size(2),
                         .kernel_width = weight.size(3),
                         .stride = 1,
                         .groups = geometry.groups,
                         .threads = at::get_num_threads()});
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias,
                       Ints stride, Ints padding, Ints dilation, bool transposed, Ints output_padding,
                       std::int64_t groups) {
  const Geometry geometry{stride, padding, dilation, transposed, output_padding, groups};
  if (takes_onednn(input, weight, geometry)) {
    return at::mkldnn_convolution(input.contiguous(), weight.contiguous(), bias, padding, stride, dilation,
                                  groups);
  }
  // The four flags are cuDNN's.
  return at::_convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups,
                          false, false, false, false);
}

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Gradients convolution_backward(const at::Tensor& grad_output, const at::Tensor& input,
                               const at::Tensor& weight, at::OptionalIntArrayRef bias_sizes, Ints stride,
                               Ints padding, Ints dilation, bool transposed, Ints output_padding,
                               std::int64_t groups, std::array<bool, 3> output_mask) {
  const Geometry geometry{stride, padding, dilation, transposed, output_padding, groups};
  if (takes_onednn(input, weight, geometry)) {
    return at::native::mkldnn_convolution_backward_stub(at::kCPU, input.contiguous(),
                                                        grad_output.contiguous(), weight.contiguous(),
                                                        padding, stride, dilation, groups, output_mask);
  }
  return at::compositeexplicitautograd::convolution_backward(grad_output, input, weight, bias_sizes, stride,
                                                             padding, dilation, transposed, output_padding,
                                                             groups, output_mask);
}

bool wanted() {
  const char* choice = std::getenv("TRIREME_CONVOLUTION_RULE");
  return choice == nullptr || std::string_view(choice) != "off";
}

}  // namespace

bool prefers_onednn(const ConvolutionShape& shape) {
  const bool aten_would_not = shape.threads == 1 && shape.batch < 16 && shape.kernel_height == 1 &&
                              shape.kernel_width == 1 && shape.stride == 1;
  if (!aten_would_not || shape.groups != 1) return false;
  // ATen multiplies by the plane of one sample: the fewer columns that has, the more a batch at once is
  // worth.
  const std::int64_t plane = shape.height * shape.width;
  return (plane >= 2 && plane <= 4) || (plane > 4 && plane < 64 && shape.batch >= 4);
}

bool follow_convolution_rule() {
  static const bool kFollowed = [] {
    if (!wanted()) return false;
    // Both operators have no kernel of their own for the CPU: these come before the composite ones.
    static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
    library.impl("convolution", TORCH_FN(convolution));
    library.impl("convolution_backward", TORCH_FN(convolution_backward));
    return true;
  }();
  return kFollowed;
}

}  // namespace trireme::model
