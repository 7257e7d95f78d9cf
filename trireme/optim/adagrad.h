#pragma once
// Adagrad (Duchi et al., JMLR 12, 2011), as PyTorch defines it, without its decay of the rate (a schedule
// does that): g += weight_decay * p; s += g^2; p -= lr * g / (sqrt(s) + eps). State: sum s, and step, which
// the fused kernel asks for.

#include "trireme/optim/update_rule.h"

namespace trireme::optim {

class Adagrad : public UpdateRule {
 public:
  /// Throws InvalidArgument: eps not positive.
  explicit Adagrad(const OptimizerOptions& options);
  std::vector<StateTensor> states() const override;
  bool goes_by_elements() const override { return true; }
  void update(UpdateLists& lists, const GroupSettings& group, double lr) const override;

 private:
  double eps_;
};

}  // namespace trireme::optim
