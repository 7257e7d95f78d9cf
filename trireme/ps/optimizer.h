#pragma once
// The arithmetic of optimizers on a server, as plain loops over f32 (ADR 0037). A rule is a row of the table
// in optimizer.cpp. No clock, no random number, no order but that of the elements: two replicas that apply
// the same updates hold the same bits.

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace trireme::ps {

/// Of an update: the rate of the table's own optimizer.
inline constexpr double kTableRate = -1;

/// An option that is not given: with_defaults() replaces it.
inline constexpr double kOptimizerDefault = std::numeric_limits<double>::lowest();

/// Names and defaults are those of the optimizers above the torch line: PyTorch's, where PyTorch has the
/// optimizer.
struct OptimizerSpec {
  std::string name = "sum";
  double lr = kOptimizerDefault;
  double weight_decay = kOptimizerDefault;
  double momentum = 0;
  bool nesterov = false;
  double beta1 = 0.9, beta2 = 0.999, alpha = 0.99;
  double eps = kOptimizerDefault;
  double l1 = 0, l2 = 0;   ///< ftrl
  double lr_power = -0.5;  ///< ftrl
  double first_sum = 0;    ///< adagrad, rowwise_adagrad, ftrl: initial sum of squares

  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.name, self.lr, self.weight_decay, self.momentum, self.nesterov, self.beta1,
                    self.beta2, self.alpha, self.eps, self.l1, self.l2, self.lr_power, self.first_sum);
  }
};

/// One chunk or row of a table.
struct OptimizerSpan {
  std::span<float> values;
  std::span<const float> gradient;
  std::span<float> state;  ///< state_elements() of them
  std::uint64_t step = 1;  ///< how many updates it has had, with this one
};

class OptimizerRule {
 public:
  virtual ~OptimizerRule() = default;
  /// Number of floats of state for so many values. Their initial values are those of `spec`, mostly zeros.
  virtual std::size_t state_elements(std::size_t num_values) const = 0;
  virtual float first_state(const OptimizerSpec&) const { return 0; }
  /// The update of one value depends on the others: so the cut of a table into chunks changes the result.
  virtual bool looks_at_whole() const { return false; }
  /// Whether a row may be updated as if it were a tensor of its own.
  virtual bool fits_rows() const { return true; }
  /// Of options that are all given (with_defaults()).
  virtual void update(const OptimizerSpec& spec, const OptimizerSpan& span) const = 0;
};

/// Throws InvalidArgument with the known names.
const OptimizerRule& optimizer_rule(std::string_view name);
std::vector<std::string> optimizer_rule_names();

/// Options that are not given become those of the optimizer; given ones stay. The coordinator does so for
/// tables that are opened. Throws InvalidArgument with the known names.
OptimizerSpec with_defaults(OptimizerSpec spec);

/// Of all options, those that are not given as with_defaults() fills them in. Throws InvalidArgument: "the
/// beta1 of adam must be in [0, 1), not 1.5".
void check(const OptimizerSpec& given);

}  // namespace trireme::ps
