#pragma once
// Kernels of the convolutions of a run on the CPU, and the memory format of their activations. The fastest
// depend on the processor (bench/results/convolution.md), so they are measured
// (model/convolution_measurement.h). The result is a ConvolutionChoice: a value, which depends on shapes
// only, never on the clock. The same choice gives the same bits everywhere. ConvolutionScope applies it.
// docs/adr/0015.

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <string>

namespace trireme::model {

/// A convolution of images without groups and dilation, for any number of samples.
struct ConvolutionShape {
  std::int64_t in = 0, out = 0;        ///< channels
  std::int64_t height = 0, width = 0;  ///< of the input
  std::array<std::int64_t, 2> kernel{1, 1}, stride{1, 1}, padding{0, 0};
  auto operator<=>(const ConvolutionShape&) const = default;
};

/// The kernels there are to choose from.
enum class ConvolutionKernel {
  kAten,     ///< the kernel that ATen takes
  kOnednn,   ///< oneDNN, also where ATen multiplies sample by sample
  kProduct,  ///< one matrix product over the batch; its output is channels_last
};

/// The kernels of the three passes of a convolution.
struct PassKernels {
  ConvolutionKernel forward = ConvolutionKernel::kAten;
  ConvolutionKernel of_input = ConvolutionKernel::kAten;   ///< gradient
  ConvolutionKernel of_weight = ConvolutionKernel::kAten;  ///< gradient, and that of the bias
  bool operator==(const PassKernels&) const = default;

  /// The same kernel for all three passes.
  static PassKernels all(ConvolutionKernel kernel) { return {kernel, kernel, kernel}; }
};

struct ConvolutionChoice {
  /// Inputs of convolutions are converted to channels_last, which later layers keep. Weights keep their
  /// format.
  bool channels_last = false;
  PassKernels otherwise = {};  ///< of shapes that have no row
  std::map<ConvolutionShape, PassKernels> kernels = {};

  /// The kernels of a shape: its row, or `otherwise`.
  const PassKernels& of(const ConvolutionShape& shape) const;
  /// Whether it leaves everything to ATen.
  bool is_atens() const;
  bool operator==(const ConvolutionChoice&) const = default;

  /// Choices that need no measurement: everything by oneDNN, and everything as products over the batch in
  /// channels_last.
  static ConvolutionChoice onednn();
  static ConvolutionChoice product();
};

/// "64>256@16x16k1x1s1x1p0x0": channels, plane, kernel, stride, padding.
std::string to_text(const ConvolutionShape& shape);
/// Throws InvalidArgument for a text that to_text() does not write.
ConvolutionShape convolution_shape_from(const std::string& text);

/// "nhwc aaa 64>256@16x16k1x1s1x1p0x0:ppp ...": format, kernels otherwise and by shape, a letter for each
/// pass (a: ATen, o: oneDNN, p: product). Choices about the same shapes have texts of the same length.
std::string to_text(const ConvolutionChoice& choice);
/// Throws InvalidArgument for a text that to_text() does not write.
ConvolutionChoice convolution_choice_from(const std::string& text);

/// For people: "channels_last; of 69 passes 61 as one product, 3 by oneDNN, 5 by ATen".
std::string describe(const ConvolutionChoice& choice);

}  // namespace trireme::model
