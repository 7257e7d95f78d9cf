#include "trireme/optim/gradient_noise.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace trireme::optim {

double GradientNoise::scale() const {
  if (signal <= 0) return std::numeric_limits<double>::infinity();
  return std::max(of_sample, 0.0) / signal;
}

/// With fractions p of B samples and q = sum of p^2: E[of_parts] = q |G|^2 + tr(Sigma) / B, and E[of_mean] =
/// |G|^2 + tr(Sigma) / B.
std::optional<GradientNoise> estimate_noise(const GradientSquares& squares) {
  const double q = squares.shares, rest = 1 - q;
  constexpr double kOnePart = 1e-9;
  if (rest < kOnePart || !std::isfinite(squares.of_parts) || !std::isfinite(squares.of_mean)) return {};
  return GradientNoise{.of_sample = squares.samples * (squares.of_parts - q * squares.of_mean) / rest,
                       .signal = (squares.of_mean - squares.of_parts) / rest};
}

void NoiseAverage::add(const GradientNoise& estimate) {
  constexpr double kPower = 3;
  state_.count += 1;
  const double weight = (kPower + 1) / (state_.count + kPower);
  state_.of_sample += weight * (estimate.of_sample - state_.of_sample);
  state_.signal += weight * (estimate.signal - state_.signal);
}

}  // namespace trireme::optim
