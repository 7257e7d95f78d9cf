#include "trireme/ps/internal/optimizer_rules.h"

#include <cmath>

namespace trireme::ps {
namespace {

/// Adds pushed values: counts, sums, deltas that workers computed.
class SumRule final : public OptimizerRule {
 public:
  std::size_t state_elements(std::size_t) const override { return 0; }
  void update(const OptimizerSpec&, const OptimizerSpan& span) const override {
    for (std::size_t i = 0; i < span.values.size(); ++i) span.values[i] += span.gradient[i];
  }
};

/// torch.optim.SGD. The momentum starts with the first gradient, which zeros as initial state give.
class SgdRule final : public OptimizerRule {
 public:
  std::size_t state_elements(std::size_t num_values) const override { return num_values; }
  void update(const OptimizerSpec& spec, const OptimizerSpan& span) const override {
    const auto lr = static_cast<float>(spec.lr), decay = static_cast<float>(spec.weight_decay);
    const auto momentum = static_cast<float>(spec.momentum);
    for (std::size_t i = 0; i < span.values.size(); ++i) {
      float& value = span.values[i];
      float& velocity = span.state[i];
      const float gradient = span.gradient[i] + decay * value;
      velocity = momentum * velocity + gradient;
      value -= lr * (spec.nesterov ? gradient + momentum * velocity : velocity);
    }
  }
};

class AdagradRule final : public OptimizerRule {
 public:
  std::size_t state_elements(std::size_t num_values) const override { return num_values; }
  float first_state(const OptimizerSpec& spec) const override { return static_cast<float>(spec.first_sum); }
  void update(const OptimizerSpec& spec, const OptimizerSpan& span) const override {
    const auto lr = static_cast<float>(spec.lr), decay = static_cast<float>(spec.weight_decay);
    const auto eps = static_cast<float>(spec.eps);
    for (std::size_t i = 0; i < span.values.size(); ++i) {
      const float gradient = span.gradient[i] + decay * span.values[i];
      span.state[i] += gradient * gradient;
      span.values[i] -= lr * gradient / (std::sqrt(span.state[i]) + eps);
    }
  }
};

/// One accumulator per row: the sum over updates of the mean of the squared gradient (FBGEMM's row-wise
/// AdaGrad).
class RowwiseAdagradRule final : public OptimizerRule {
 public:
  std::size_t state_elements(std::size_t) const override { return 1; }
  float first_state(const OptimizerSpec& spec) const override { return static_cast<float>(spec.first_sum); }
  bool looks_at_whole() const override { return true; }
  void update(const OptimizerSpec& spec, const OptimizerSpan& span) const override {
    const auto decay = static_cast<float>(spec.weight_decay);
    double squares = 0;
    for (std::size_t i = 0; i < span.values.size(); ++i) {
      const float gradient = span.gradient[i] + decay * span.values[i];
      squares += static_cast<double>(gradient) * gradient;
    }
    span.state[0] += static_cast<float>(squares / static_cast<double>(span.values.size()));
    const float rate =
        static_cast<float>(spec.lr) / (std::sqrt(span.state[0]) + static_cast<float>(spec.eps));
    for (std::size_t i = 0; i < span.values.size(); ++i)
      span.values[i] -= rate * (span.gradient[i] + decay * span.values[i]);
  }
};

/// Bias corrections, by the number of updates of this chunk or row.
struct Corrections {
  double first, second_root;
  Corrections(const OptimizerSpec& spec, std::uint64_t step)
      : first(1 - std::pow(spec.beta1, static_cast<double>(step))),
        second_root(std::sqrt(1 - std::pow(spec.beta2, static_cast<double>(step)))) {}
};

/// Adam (Kingma and Ba, 2015) with decay added to the gradient. AdamW (Loshchilov and Hutter, 2019) with
/// decoupled decay.
class AdamRule final : public OptimizerRule {
 public:
  explicit AdamRule(bool decoupled) : decoupled_(decoupled) {}
  std::size_t state_elements(std::size_t num_values) const override { return 2 * num_values; }
  void update(const OptimizerSpec& spec, const OptimizerSpan& span) const override {
    const Corrections corrections(spec, span.step);
    const auto decay = static_cast<float>(decoupled_ ? 0 : spec.weight_decay);
    const auto shrink = static_cast<float>(decoupled_ ? 1 - spec.lr * spec.weight_decay : 1);
    const auto one_less_beta1 = static_cast<float>(1 - spec.beta1);
    const auto beta2 = static_cast<float>(spec.beta2), one_less_beta2 = static_cast<float>(1 - spec.beta2);
    const auto rate = static_cast<float>(spec.lr / corrections.first);
    const auto root = static_cast<float>(corrections.second_root), eps = static_cast<float>(spec.eps);
    const std::span<float> means = span.state.first(span.values.size());
    const std::span<float> squares = span.state.subspan(span.values.size());
    for (std::size_t i = 0; i < span.values.size(); ++i) {
      const float value = span.values[i] * shrink;
      const float gradient = span.gradient[i] + decay * value;
      means[i] += one_less_beta1 * (gradient - means[i]);
      squares[i] = beta2 * squares[i] + one_less_beta2 * gradient * gradient;
      span.values[i] = value - rate * means[i] / (std::sqrt(squares[i]) / root + eps);
    }
  }

 private:
  bool decoupled_;
};

class RmspropRule final : public OptimizerRule {
 public:
  std::size_t state_elements(std::size_t num_values) const override { return 2 * num_values; }
  void update(const OptimizerSpec& spec, const OptimizerSpan& span) const override {
    const auto lr = static_cast<float>(spec.lr), decay = static_cast<float>(spec.weight_decay);
    const auto alpha = static_cast<float>(spec.alpha), one_less_alpha = static_cast<float>(1 - spec.alpha);
    const auto eps = static_cast<float>(spec.eps), momentum = static_cast<float>(spec.momentum);
    const std::span<float> squares = span.state.first(span.values.size());
    const std::span<float> velocities = span.state.subspan(span.values.size());
    for (std::size_t i = 0; i < span.values.size(); ++i) {
      const float gradient = span.gradient[i] + decay * span.values[i];
      squares[i] = alpha * squares[i] + one_less_alpha * gradient * gradient;
      velocities[i] = momentum * velocities[i] + gradient / (std::sqrt(squares[i]) + eps);
      span.values[i] -= lr * velocities[i];
    }
  }
};

/// FTRL-Proximal (McMahan et al., KDD 2013, algorithm 1, beta 0), with an optional power of the rate. Values
/// before the first gradient are its starting point.
class FtrlRule final : public OptimizerRule {
 public:
  std::size_t state_elements(std::size_t num_values) const override { return 2 * num_values; }
  void update(const OptimizerSpec& spec, const OptimizerSpan& span) const override {
    const std::span<float> sums = span.state.first(span.values.size());
    const std::span<float> linear = span.state.subspan(span.values.size());
    if (spec.lr == 0) return;  // the rate is a divisor
    for (std::size_t i = 0; i < span.values.size(); ++i) {
      const double value = span.values[i], gradient = span.gradient[i];
      const double before = spec.first_sum + sums[i], after = before + gradient * gradient;
      const double old_root = before == 0 ? 0 : std::pow(before, -spec.lr_power);
      const double root = after == 0 ? 0 : std::pow(after, -spec.lr_power);
      const double sum = linear[i] + gradient - (root - old_root) / spec.lr * value;
      sums[i] = static_cast<float>(after - spec.first_sum);
      linear[i] = static_cast<float>(sum);
      const double curvature = root / spec.lr + 2 * spec.l2;
      const bool is_zero = std::abs(sum) <= spec.l1 || curvature == 0;
      span.values[i] = is_zero ? 0 : static_cast<float>((std::copysign(spec.l1, sum) - sum) / curvature);
    }
  }
};

/// LAMB (You et al., ICLR 2020): Adam's step, scaled to the norm of the values times the rate.
class LambRule final : public OptimizerRule {
 public:
  std::size_t state_elements(std::size_t num_values) const override { return 2 * num_values; }
  bool looks_at_whole() const override { return true; }
  bool fits_rows() const override { return false; }
  void update(const OptimizerSpec& spec, const OptimizerSpan& span) const override {
    const Corrections corrections(spec, span.step);
    const auto one_less_beta1 = static_cast<float>(1 - spec.beta1);
    const auto beta2 = static_cast<float>(spec.beta2), one_less_beta2 = static_cast<float>(1 - spec.beta2);
    const std::span<float> means = span.state.first(span.values.size());
    const std::span<float> squares = span.state.subspan(span.values.size());
    double value_norm = 0, update_norm = 0;
    for (std::size_t i = 0; i < span.values.size(); ++i) {
      const float gradient = span.gradient[i];
      means[i] += one_less_beta1 * (gradient - means[i]);
      squares[i] = beta2 * squares[i] + one_less_beta2 * gradient * gradient;
      const double step = step_of(spec, corrections, span.values[i], means[i], squares[i]);
      value_norm += static_cast<double>(span.values[i]) * span.values[i];
      update_norm += step * step;
    }
    const double trust = value_norm > 0 && update_norm > 0 ? std::sqrt(value_norm / update_norm) : 1;
    for (std::size_t i = 0; i < span.values.size(); ++i) {
      const double step = step_of(spec, corrections, span.values[i], means[i], squares[i]);
      span.values[i] = static_cast<float>(span.values[i] - spec.lr * trust * step);
    }
  }

 private:
  static double step_of(const OptimizerSpec& spec, const Corrections& corrections, double value, double mean,
                        double square) {
    const double divisor = std::sqrt(square) / corrections.second_root + spec.eps;
    return mean / corrections.first / divisor + spec.weight_decay * value;
  }
};

}  // namespace

const OptimizerRule& sum_rule() {
  static const SumRule rule;
  return rule;
}
const OptimizerRule& sgd_rule() {
  static const SgdRule rule;
  return rule;
}
const OptimizerRule& adagrad_rule() {
  static const AdagradRule rule;
  return rule;
}
const OptimizerRule& rowwise_adagrad_rule() {
  static const RowwiseAdagradRule rule;
  return rule;
}
const OptimizerRule& adam_rule() {
  static const AdamRule rule(false);
  return rule;
}
const OptimizerRule& adamw_rule() {
  static const AdamRule rule(true);
  return rule;
}
const OptimizerRule& rmsprop_rule() {
  static const RmspropRule rule;
  return rule;
}
const OptimizerRule& ftrl_rule() {
  static const FtrlRule rule;
  return rule;
}
const OptimizerRule& lamb_rule() {
  static const LambRule rule;
  return rule;
}

}  // namespace trireme::ps
