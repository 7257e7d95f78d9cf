#include "trireme/model/internal/convolution_timing.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <vector>

#include "trireme/model/internal/convolution_kernels.h"

namespace trireme::model {
namespace {

constexpr std::array<bool, 3> kBothGradients{true, true, false};

double thread_time_us() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

}  // namespace

ConvolutionTimer::ConvolutionTimer(const TimedShape& shape)
    : input_(at::full({shape.batch, shape.in, shape.side, shape.side}, 0.5)),
      weight_(at::full({shape.out, shape.in, 1, 1}, 0.25)),
      gradient_(at::full({shape.batch, shape.out, shape.side, shape.side}, 0.125)) {
  time(1);
}

ConvolutionTimes ConvolutionTimer::time(int turns) const {
  const at::NoGradGuard no_grad;
  const std::vector<std::int64_t> one{1, 1}, zero{0, 0};
  const Geometry geometry{one, zero, one, false, zero, 1};
  const std::array<std::function<void()>, 4> actions{
      [&] { aten_convolution(input_, weight_, {}, geometry); },
      [&] { onednn_convolution(input_, weight_, {}, geometry); },
      [&] { aten_gradients(gradient_, input_, weight_, {}, geometry, kBothGradients); },
      [&] { onednn_gradients(gradient_, input_, weight_, geometry, kBothGradients); }};
  std::array<double, 4> least_us;
  least_us.fill(std::numeric_limits<double>::infinity());
  for (int turn = 0; turn < turns; ++turn) {
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const double begin_us = thread_time_us();
      actions[i]();
      least_us[i] = std::min(least_us[i], thread_time_us() - begin_us);
    }
  }
  return {.aten_forward_us = least_us[0],
          .onednn_forward_us = least_us[1],
          .aten_backward_us = least_us[2],
          .onednn_backward_us = least_us[3]};
}

}  // namespace trireme::model
