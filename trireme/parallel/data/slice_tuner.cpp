#include "trireme/parallel/data/internal/slice_tuner.h"

#include <algorithm>

namespace trireme::parallel {

/// A step's time is the interval between the first gradients of consecutive steps. It includes the reduction,
/// and the forward that waits for it.
void SliceTuner::begin_step(double now_s) {
  ++step_;
  if (step_ > kFirst && !is_over()) times_s_.push_back(now_s - began_s_);
  began_s_ = now_s;
  if (times_s_.size() < kSteps) return;
  const auto middle = times_s_.begin() + kSteps / 2;
  std::ranges::nth_element(times_s_, middle);
  median_s_ = *middle;
  times_s_.clear();
}

int SliceTuner::told() const {
  const std::int64_t timed = step_ - kFirst;
  const bool is_told = timed > 0 && timed % kSteps == 0 && !is_over();
  return is_told ? static_cast<int>(timed / kSteps) - 1 : -1;
}

std::int64_t SliceTuner::slice_bytes() const {
  if (is_over()) {
    const auto least = std::ranges::min_element(sums_s_);
    return kSizes.at(static_cast<std::size_t>(least - sums_s_.begin()));
  }
  const std::int64_t tried = std::max<std::int64_t>(0, step_ - kFirst) / kSteps;
  return kSizes.at(std::min<std::size_t>(static_cast<std::size_t>(tried), kSizes.size() - 1));
}

}  // namespace trireme::parallel
