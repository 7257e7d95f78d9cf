#include "trireme/model/convolution_scope.h"

#include <torch/library.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "trireme/model/internal/convolution_kernels.h"

namespace trireme::model {
namespace {

/// The choice of this thread's innermost scope; null: none. Backward runs on the thread that calls it.
thread_local const ConvolutionChoice* chosen = nullptr;
/// Records this thread's convolutions; null: no recording.
thread_local std::vector<ConvolutionShape>* noted = nullptr;

bool is_plain(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat && tensor.layout() == at::kStrided && tensor.dim() == 4 &&
         tensor.numel() > 0;
}

/// Whether the sizes are valid. ATen reports the error of an invalid convolution.
bool fits(const ConvolutionShape& shape, const at::Tensor& input, const std::optional<at::Tensor>& bias) {
  const std::array plane{shape.height, shape.width};
  for (std::size_t dim = 0; dim < plane.size(); ++dim) {
    if (shape.stride[dim] < 1 || shape.padding[dim] < 0) return false;
    if (plane[dim] + 2 * shape.padding[dim] < shape.kernel[dim]) return false;
  }
  const bool has_bias = bias && bias->defined();
  return input.size(1) == shape.in && (!has_bias || (bias->dim() == 1 && bias->size(0) == shape.out));
}

/// Empty: a choice does not apply to this convolution.
std::optional<ConvolutionShape> shape_of(const at::Tensor& input, const at::Tensor& weight,
                                         const std::optional<at::Tensor>& bias, const Geometry& geometry) {
  const auto is_one = [](std::int64_t value) { return value == 1; };
  if (geometry.transposed || geometry.groups != 1 || !is_plain(input) || !is_plain(weight) ||
      geometry.stride.size() != 2 || geometry.padding.size() != 2 ||
      !std::all_of(geometry.dilation.begin(), geometry.dilation.end(), is_one)) {
    return std::nullopt;
  }
  const ConvolutionShape shape{.in = weight.size(1),
                               .out = weight.size(0),
                               .height = input.size(2),
                               .width = input.size(3),
                               .kernel = {weight.size(2), weight.size(3)},
                               .stride = {geometry.stride[0], geometry.stride[1]},
                               .padding = {geometry.padding[0], geometry.padding[1]}};
  return fits(shape, input, bias) ? std::optional(shape) : std::nullopt;
}

/// In the memory format of the choice.
at::Tensor laid_out(const at::Tensor& tensor) {
  return chosen != nullptr && chosen->channels_last && tensor.dim() == 4
             ? tensor.contiguous(at::MemoryFormat::ChannelsLast)
             : tensor;
}

at::Tensor chosen_convolution(const at::Tensor& input, const at::Tensor& weight,
                              const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                              at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                              at::IntArrayRef output_padding, std::int64_t groups) {
  const Geometry geometry{stride, padding, dilation, transposed, output_padding, groups};
  const bool counts = chosen != nullptr || noted != nullptr;
  const auto shape = counts ? shape_of(input, weight, bias, geometry) : std::nullopt;
  if (shape && noted != nullptr) noted->push_back(*shape);
  const auto kernel = shape && chosen != nullptr ? chosen->of(*shape).forward : ConvolutionKernel::kAten;
  return convolution_by(kernel, laid_out(input), weight, bias, geometry);
}

ConvolutionGradients chosen_convolution_backward(const at::Tensor& grad_output, const at::Tensor& input,
                                                 const at::Tensor& weight, at::OptionalIntArrayRef bias_sizes,
                                                 at::IntArrayRef stride, at::IntArrayRef padding,
                                                 at::IntArrayRef dilation, bool transposed,
                                                 at::IntArrayRef output_padding, std::int64_t groups,
                                                 std::array<bool, 3> output_mask) {
  const Geometry geometry{stride, padding, dilation, transposed, output_padding, groups};
  const auto shape = chosen == nullptr ? std::nullopt : shape_of(input, weight, {}, geometry);
  const PassKernels kernels = shape ? chosen->of(*shape) : PassKernels{};
  const BackwardOf of{laid_out(grad_output), laid_out(input), weight, bias_sizes};
  if (kernels.of_input == kernels.of_weight)
    return gradients_by(kernels.of_weight, of, geometry, output_mask);
  auto [none, of_weight, of_bias] =
      gradients_by(kernels.of_weight, of, geometry, {false, output_mask[1], output_mask[2]});
  auto [of_input, no_weight, no_bias] =
      gradients_by(kernels.of_input, of, geometry, {output_mask[0], false, false});
  return {of_input, of_weight, of_bias};
}

void install_kernels() {
  // ATen has no CPU kernels for the two operators, so these take precedence over the composite ones.
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  static const bool kInstalled = [] {
    library.impl("convolution", TORCH_FN(chosen_convolution));
    library.impl("convolution_backward", TORCH_FN(chosen_convolution_backward));
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

std::vector<ConvolutionShape> convolutions_in(const std::function<void()>& forward) {
  struct Note {
    std::vector<ConvolutionShape> shapes;
    std::vector<ConvolutionShape>* const outer = std::exchange(noted, &shapes);
    ~Note() { noted = outer; }
  } note;
  install_kernels();
  forward();
  return std::move(note.shapes);
}

}  // namespace trireme::model
