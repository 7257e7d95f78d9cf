#pragma once
// The gradient noise scale. A step's gradient is the mean over its samples; of one sample it has the
// covariance Sigma around the true gradient G. The norm of a sum of parts (micro-batches, on any ranks) and
// the norms of the parts give unbiased estimates of |G|^2 and tr(Sigma). Their ratio is the gradient noise
// scale: the batch at which noise and signal are equal. (McCandlish et al., arXiv 1812.06162, appendix A.1,
// here for parts of any sizes.) Values; pure.

#include <optional>

namespace trireme::optim {

/// Squared norms of the gradient of a step: the mean over its samples, a sum of parts.
struct GradientSquares {
  double of_parts = 0;  ///< sum over the parts: |its addend of the mean|^2
  double of_mean = 0;   ///< |the mean|^2
  double shares = 1;    ///< sum over the parts: (its share of the samples)^2; 1: there is one part
  double samples = 0;   ///< of the step
};

struct GradientNoise {
  double of_sample = 0;  ///< tr(Sigma): the variance of one sample's gradient
  double signal = 0;     ///< |G|^2
  /// tr(Sigma) / |G|^2. Infinite where noise hides all signal; single estimates of either may be negative.
  double scale() const;
};

/// Unbiased. None where one part has all samples, or a number is not finite.
std::optional<GradientNoise> estimate_noise(const GradientSquares& squares);

/// The mean of estimates in which the k-th weighs about as k^3: most of the weight is in the last quarter of
/// the estimates, for any number of them. (Polynomial-decay averaging, Shamir and Zhang, arXiv 1212.1824.)
class NoiseAverage {
 public:
  /// All that it has summed up: as three numbers in a checkpoint.
  struct State {
    double count = 0, of_sample = 0, signal = 0;
  };

  /// Takes one more estimate into the mean.
  void add(const GradientNoise& estimate);
  double count() const { return state_.count; }
  GradientNoise mean() const { return {.of_sample = state_.of_sample, .signal = state_.signal}; }
  const State& state() const { return state_; }
  /// Continues from the state() of another estimate.
  void restore(const State& state) { state_ = state; }

 private:
  State state_;
};

}  // namespace trireme::optim
