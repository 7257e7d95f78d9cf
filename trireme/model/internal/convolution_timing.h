#pragma once
// Times of the passes of a convolution with each kernel. On one thread it is processor time of that thread:
// other processes on the machine affect its caches, but not its time slices. On several it is the clock's.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "trireme/model/convolution_measurement.h"

namespace trireme::model {

/// f32, no bias, without random numbers.
class ConvolutionTimer {
 public:
  /// Runs everything once, so that memory and oneDNN's compiled kernels are there.
  ConvolutionTimer(const ConvolutionShape& shape, std::int64_t batch);

  /// Of the ways that differ on this machine, with this number of threads: the least of `turns` turns, in
  /// each of which all run, as disturbances only add time. The turns end early, after one at least, when they
  /// have taken `enough_us`.
  ConvolutionTimes time(int turns, double enough_us) const;

 private:
  PassTimes once(const ConvolutionWay& way) const;

  const ConvolutionShape shape_;
  const std::int64_t batch_;
  at::Tensor input_, weight_, gradient_;
};

}  // namespace trireme::model
