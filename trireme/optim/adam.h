#pragma once
// Adam (Kingma and Ba, arXiv 1412.6980) with L2, and AdamW with decoupled weight decay (Loshchilov and
// Hutter, arXiv 1711.05101), as PyTorch defines them. First, adam does g += weight_decay * p, and adamw p -=
// lr * weight_decay * p. Then both do m = lerp(g, m, beta1) and v = lerp(g^2, v, beta2). The update is p -=
// lr * m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps). State: exp_avg m, exp_avg_sq v, step t. After
// variance_steps updates v stays as it is (frozen_variance.h).

#include "trireme/optim/frozen_variance.h"
#include "trireme/optim/update_rule.h"

namespace trireme::optim {

class Adam : public UpdateRule {
 public:
  /// Whether weight decay is added to the gradient, as in adam, or taken from the parameter, as in adamw.
  enum class WeightDecay { kL2, kDecoupled };

  /// Throws InvalidArgument: a beta outside [0, 1), eps not positive.
  Adam(const OptimizerOptions& options, WeightDecay decay);
  std::vector<StateTensor> states() const override;
  bool goes_by_elements() const override { return true; }
  /// With a variance that freezes, the host decides by counts.
  bool can_leave_out() const override { return factors_.variance_steps == 0; }
  void update(UpdateLists& lists, const GroupSettings& group, double lr) const override;

 private:
  void update_frozen(UpdateLists& lists, double weight_decay, double lr) const;

  WeightDecay decay_;
  AdamFactors factors_;
};

}  // namespace trireme::optim
