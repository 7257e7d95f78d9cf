#pragma once
// How long a 1x1 convolution takes with each of the two kernels. One thread, and processor time of that
// thread: what else runs on the machine takes caches from it, but no turns.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::model {

/// f32, stride 1, no bias; planes are square.
struct TimedShape {
  std::int64_t in = 0, out = 0, side = 0, batch = 0;
};

struct ConvolutionTimes {
  double aten_forward_us = 0, onednn_forward_us = 0;
  double aten_backward_us = 0, onednn_backward_us = 0;  ///< gradients of input and weight
  /// Above 1: oneDNN is faster.
  double speedup() const {
    return (aten_forward_us + aten_backward_us) / (onednn_forward_us + onednn_backward_us);
  }
};

class ConvolutionTimer {
 public:
  /// Runs everything once, so that memory and oneDNN's compiled kernels are there.
  explicit ConvolutionTimer(const TimedShape& shape);

  /// The least of `turns` turns, in each of which both kernels run: what disturbs them only adds.
  ConvolutionTimes time(int turns) const;

 private:
  at::Tensor input_, weight_, gradient_;
};

}  // namespace trireme::model
