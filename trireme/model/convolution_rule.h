#pragma once
// Which kernel a convolution on the CPU takes. ATen computes a 1x1 convolution of fewer than 16 samples as a
// matrix product per sample when the process runs on one thread (its rule: use_mkldnn in
// ATen/native/Convolution.cpp; with two threads it takes oneDNN). On small planes, such as the last stage of
// a ResNet, that is up to nine times slower than oneDNN. One thread and a small micro-batch is what a rank of
// a parallel run has. This rule sends those shapes to oneDNN, in any module of the process, a user's own
// included; everything else takes the way it always took. It looks at shapes and the number of threads only,
// never at the clock: the same run gives the same bits on every rank and after a resume. Measured:
// bench/results/convolution.md.

#include <cstdint>

namespace trireme::model {

/// What the rule looks at.
struct ConvolutionShape {
  std::int64_t batch = 0;
  std::int64_t height = 0, width = 0;  ///< of the input
  std::int64_t kernel_height = 0, kernel_width = 0;
  std::int64_t stride = 1;
  std::int64_t groups = 1;
  int threads = 1;
};

/// Whether the rule sends this f32 convolution to oneDNN where ATen would not.
bool prefers_onednn(const ConvolutionShape& shape);

/// Lets convolutions of this process follow the rule from now on. Idempotent, thread-safe, for the life of
/// the process. False, and nothing changed, when the environment variable TRIREME_CONVOLUTION_RULE is "off".
bool follow_convolution_rule();

}  // namespace trireme::model
