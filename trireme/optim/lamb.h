#pragma once
// LAMB (You et al., arXiv 1904.00962, algorithm 2, phi the identity): m and v as in Adam, both corrected for
// their bias; u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay * p;
// p -= lr * |p| / |u| * u. The ratio is 1 where a norm is 0, and for tensors of at most one dim when decay_1d
// is false. State: exp_avg m, exp_avg_sq v, step t.
//
// 1-bit LAMB (Li et al., arXiv 2104.06069, algorithm 1), after variance_steps updates: v stays in the update.
// The ratio |p| / |u| would follow every rounding of m. A frozen ratio replaces it: its mean until then,
// times how much smaller a v that continues has become. Additional state: exp_avg_sq_fresh, trust_avg,
// trust_factor.

#include "trireme/optim/frozen_variance.h"
#include "trireme/optim/update_rule.h"

namespace trireme::optim {

class Lamb : public UpdateRule {
 public:
  /// Throws InvalidArgument: a beta outside [0, 1), eps not positive.
  explicit Lamb(const OptimizerOptions& options);
  std::vector<StateTensor> states() const override;
  void update(UpdateLists& lists, const GroupSettings& group, double lr) const override;

 private:
  void update_learning(UpdateLists& lists, const GroupSettings& group, double lr) const;
  void update_frozen(UpdateLists& lists, const GroupSettings& group, double lr) const;

  void note_trust(const UpdateLists& lists, const TensorVector& ratios) const;
  at::Tensor trust_of(const UpdateLists& lists, std::size_t i, const at::Tensor& share) const;

  AdamFactors factors_;
};

}  // namespace trireme::optim
