#include "trireme/optim/ada_scale.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "trireme/base/error.h"

namespace trireme::optim {
namespace {

constexpr double kLeastVariance = 1e-6;
constexpr double kSlowest = 1000;  ///< an average remembers so many reference batches

}  // namespace

AdaScale::AdaScale(std::int64_t reference_batch) : reference_batch_(static_cast<double>(reference_batch)) {
  require(reference_batch >= 1,
          "scale_with_batch = adascale needs a reference_batch of at least 1, the samples per step for which "
          "the learning rate was chosen, not ",
          reference_batch);
}

double AdaScale::gain(std::int64_t step, std::int64_t samples) {
  if (state_.waiting_step > 0 && state_.waiting_step + 1 < static_cast<double>(step)) count_waiting();
  const double scale = std::max(1.0, static_cast<double>(samples) / reference_batch_);
  if (state_.count == 0) return 1;
  const double variance = std::max(state_.variance, kLeastVariance), signal = std::max(state_.signal, 0.0);
  return std::clamp((variance + signal) / (variance / scale + signal), 1.0, scale);
}

void AdaScale::observe(std::int64_t step, const GradientNoise& noise, double samples) {
  if (state_.waiting_step > 0) count_waiting();
  state_.waiting_step = static_cast<double>(step);
  state_.waiting_variance = noise.of_sample / reference_batch_;
  state_.waiting_signal = noise.signal;
  state_.waiting_scale = std::max(1.0, samples / reference_batch_);
}

void AdaScale::count_waiting() {
  state_.count += 1;
  const double weight = std::min(1.0, std::max(1 / state_.count, state_.waiting_scale / kSlowest));
  state_.variance += weight * (state_.waiting_variance - state_.variance);
  state_.signal += weight * (state_.waiting_signal - state_.signal);
  state_.waiting_step = 0;
}

std::optional<double> gain_exponent(const std::string& optimizer) {
  if (optimizer == "sgd") return 1;
  constexpr std::array<std::string_view, 4> kByRoot = {"adamw", "adam", "adagrad", "rmsprop"};
  if (std::ranges::find(kByRoot, optimizer) != kByRoot.end()) return 0.5;
  return std::nullopt;
}

}  // namespace trireme::optim
