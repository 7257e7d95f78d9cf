#pragma once
// Which kernel a small convolution on the CPU takes. ATen computes an f32 1x1 convolution of fewer than 16
// samples as a matrix product per sample when the rank runs on one thread (its rule: use_mkldnn in
// ATen/native/Convolution.cpp; with two threads it takes oneDNN), and that is what a rank of a parallel run
// has. Which of the two is faster depends on the processor: on an AMD EPYC oneDNN by up to nine times, on an
// Intel Xeon ATen by up to five (bench/results/convolution.md). So it is measured
// (model/convolution_measurement.h), and the outcome is a ConvolutionChoice: a value, which looks at shapes
// and the number of threads only, never at the clock. The same choice gives the same bits everywhere.
// ConvolutionScope puts it to use. docs/adr/0015.

#include <array>
#include <cstdint>
#include <string>

namespace trireme::model {

/// What a choice looks at.
struct ConvolutionShape {
  std::int64_t batch = 0;
  std::int64_t in = 0, out = 0;        ///< channels
  std::int64_t height = 0, width = 0;  ///< of the input
  std::int64_t kernel_height = 0, kernel_width = 0;
  std::int64_t stride = 1;
  std::int64_t groups = 1;
  int threads = 1;
};

struct ConvolutionChoice {
  /// From here on ATen takes oneDNN itself.
  static constexpr std::int64_t kAtenEnds = 16;
  /// Planes of 2 to 4, to 16 and to 63 pixels. ATen multiplies by the plane of one sample: the fewer columns
  /// that has, the more a batch at once is worth.
  static constexpr int kNumPlanes = 3;

  /// The least number of samples for which oneDNN is taken, by plane and by whether the convolution has more
  /// channels at its output than at its input (1) or not (0). ATen's own choice as it is made.
  std::array<std::array<std::int64_t, 2>, kNumPlanes> least_batch{
      {{kAtenEnds, kAtenEnds}, {kAtenEnds, kAtenEnds}, {kAtenEnds, kAtenEnds}}};

  /// Whether this f32 convolution goes to oneDNN where ATen would not send it there.
  bool takes_onednn(const ConvolutionShape& shape) const;
  bool is_atens() const { return *this == ConvolutionChoice{}; }
  bool operator==(const ConvolutionChoice&) const = default;

  /// oneDNN for every shape that the choice is about.
  static ConvolutionChoice onednn();
};

/// "16 16 16 8 16 16": of each plane, to fewer or as many channels and to more.
std::string to_text(const ConvolutionChoice& choice);
/// Throws InvalidArgument for what to_text() does not write.
ConvolutionChoice convolution_choice_from(const std::string& text);

/// For people: "oneDNN for planes to 2x2 from 8 samples (to more channels), else ATen's kernel".
std::string describe(const ConvolutionChoice& choice);

}  // namespace trireme::model
