#pragma once
// AdaScale (Johnson et al., arXiv 2007.05105): a step of S times the reference batch does the work of r steps
// of the reference batch, 1 <= r <= S, r = (s + m) / (s / S + m), with s the variance of the gradient of a
// reference batch and m the squared norm of the true one. The learning rate is multiplied with r, or for
// optimizers that divide gradients by their own size with its root, and a run's progress is the sum of the
// gains: what schedules are read at. s and m are moving averages of estimates. An estimate counts from the
// second step behind its own on, when all ranks have it, however early it came. A value; deterministic.

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/optim/gradient_noise.h"

namespace trireme::optim {

class AdaScale {
 public:
  /// All numbers, so that a checkpoint can hold them.
  struct State {
    double progress = 0;                         ///< sum of the gains of the steps done
    double count = 0, variance = 0, signal = 0;  ///< estimates in the averages, and those
    double waiting_step = 0;                     ///< of an estimate that does not count yet; 0: none
    double waiting_variance = 0, waiting_signal = 0;
    double waiting_scale = 1;
  };

  /// Throws InvalidArgument: reference_batch below 1.
  explicit AdaScale(std::int64_t reference_batch);

  /// The gain of step number `step`, 1 for the first, over so many samples.
  double gain(std::int64_t step, std::int64_t samples);
  /// A step with that gain was done.
  void advance(double gain) { state_.progress += gain; }
  /// What was found out about step number `step`; in rising order.
  void observe(std::int64_t step, const GradientNoise& noise, double samples);

  double progress() const { return state_.progress; }
  const State& state() const { return state_; }
  /// Goes on from the state() of another one, as after a resume.
  void restore(const State& state) { state_ = state; }

 private:
  void count_waiting();

  const double reference_batch_;
  State state_;
};

/// The power of the gain that multiplies the learning rate of that optimizer: 1 for sgd, 1/2 for adamw, adam,
/// adagrad and rmsprop; none where an update has the same size whatever the gradient's noise (lars, lamb,
/// lion, muon), for which no gain is defined.
std::optional<double> gain_exponent(const std::string& optimizer);

}  // namespace trireme::optim
