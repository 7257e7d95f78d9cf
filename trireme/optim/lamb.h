#pragma once
// LAMB (You et al., arXiv 1904.00962, algorithm 2, phi the identity): m and v as in Adam, both corrected for
// their bias; u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay * p;
// p -= lr * |p| / |u| * u. The ratio is 1 where a norm is 0, and for tensors of at most one dim when decay_1d
// is false. State: exp_avg m, exp_avg_sq v, step t.

#include "trireme/optim/update_rule.h"

namespace trireme::optim {

class Lamb : public UpdateRule {
 public:
  /// Throws InvalidArgument: a beta outside [0, 1), eps not positive.
  explicit Lamb(const OptimizerOptions& options);
  std::vector<StateTensor> states() const override;
  void update(UpdateLists& lists, const GroupSettings& group, double lr) const override;

 private:
  double beta1_, beta2_, eps_;
};

}  // namespace trireme::optim
