#include "trireme/model/internal/convolution_timing.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "trireme/model/internal/convolution_kernels.h"

namespace trireme::model {
namespace {

double used_us() {
  timespec now{};
  ::clock_gettime(at::get_num_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

/// Microseconds, rounded to tenths as in the file.
template <class Action>
double time_of_us(const Action& action) {
  const double begin_us = used_us();
  action();
  return std::round(10 * (used_us() - begin_us)) / 10;
}

/// Whether ATen multiplies sample by sample (condition use_mkldnn in ATen/native/Convolution.cpp).
bool atens_own(const ConvolutionShape& shape, std::int64_t batch) {
  constexpr std::array<std::int64_t, 2> kOnes{1, 1};
  return shape.kernel == kOnes && shape.stride == kOnes && batch < 16 && at::get_num_threads() == 1;
}

std::vector<ConvolutionWay> ways_of(const ConvolutionShape& shape, std::int64_t batch) {
  const bool onednn = at::hasMKLDNN() && at::globalContext().userEnabledMkldnn();
  std::vector<ConvolutionWay> ways{{false, ConvolutionKernel::kAten},
                                   {true, ConvolutionKernel::kAten},
                                   {true, ConvolutionKernel::kProduct}};
  if (onednn && atens_own(shape, batch)) {
    ways.push_back({false, ConvolutionKernel::kOnednn});
    ways.push_back({true, ConvolutionKernel::kOnednn});
  }
  return ways;
}

PassTimes least_of(const PassTimes& a, const PassTimes& b) {
  return {std::min(a.forward_us, b.forward_us), std::min(a.of_input_us, b.of_input_us),
          std::min(a.of_weight_us, b.of_weight_us)};
}

std::int64_t side(const ConvolutionShape& shape, std::size_t dim, std::int64_t of_input) {
  return (of_input + 2 * shape.padding[dim] - shape.kernel[dim]) / shape.stride[dim] + 1;
}

}  // namespace

ConvolutionTimer::ConvolutionTimer(const ConvolutionShape& shape, std::int64_t batch)
    : shape_(shape),
      batch_(batch),
      input_(at::full({batch, shape.in, shape.height, shape.width}, 0.5)),
      weight_(at::full({shape.out, shape.in, shape.kernel[0], shape.kernel[1]}, 0.25)),
      gradient_(
          at::full({batch, shape.out, side(shape, 0, shape.height), side(shape, 1, shape.width)}, 0.125)) {
  for (const ConvolutionWay& way : ways_of(shape_, batch_)) once(way);
}

ConvolutionTimes ConvolutionTimer::time(int turns, double enough_us) const {
  const std::vector<ConvolutionWay> ways = ways_of(shape_, batch_);
  ConvolutionTimes times;
  double taken_us = 0;
  for (int turn = 0; turn < turns && (turn == 0 || taken_us < enough_us); ++turn) {
    for (const ConvolutionWay& way : ways) {
      const PassTimes now = once(way);
      taken_us += now.sum_us();
      const auto [entry, is_first] = times.emplace(way, now);
      if (!is_first) entry->second = least_of(entry->second, now);
    }
  }
  return times;
}

PassTimes ConvolutionTimer::once(const ConvolutionWay& way) const {
  const at::NoGradGuard no_grad;
  const std::vector<std::int64_t> stride(shape_.stride.begin(), shape_.stride.end()),
      padding(shape_.padding.begin(), shape_.padding.end()), one{1, 1}, zero{0, 0};
  const Geometry geometry{stride, padding, one, false, zero, 1};
  const auto format = way.channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  const BackwardOf of{gradient_.contiguous(format), input_.contiguous(format), weight_, std::nullopt};
  const auto gradients_us = [&](std::array<bool, 3> mask) {
    return time_of_us([&] { gradients_by(way.kernel, of, geometry, mask); });
  };
  return {.forward_us = time_of_us([&] { convolution_by(way.kernel, of.input, weight_, {}, geometry); }),
          .of_input_us = gradients_us({true, false, false}),
          .of_weight_us = gradients_us({false, true, false})};
}

}  // namespace trireme::model
