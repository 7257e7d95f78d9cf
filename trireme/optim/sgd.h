#pragma once
// Stochastic gradient descent with momentum, as PyTorch defines it (Sutskever et al., 2013, with the rate
// outside the momentum and no dampening): g += weight_decay * p; v = momentum * v + g; p -= lr * (nesterov ?
// g + momentum * v : v). State: momentum v, absent when the momentum is 0. PyTorch begins v with the first
// gradient; without dampening that equals zeros after the first step.

#include "trireme/optim/update_rule.h"

namespace trireme::optim {

class Sgd : public UpdateRule {
 public:
  /// Throws InvalidArgument: momentum outside [0, 1), nesterov without momentum.
  explicit Sgd(const OptimizerOptions& options);
  std::vector<StateTensor> states() const override;
  bool goes_by_elements() const override { return true; }
  bool can_leave_out() const override { return true; }
  void update(UpdateLists& lists, const GroupSettings& group, double lr) const override;

 private:
  double momentum_;
  bool nesterov_;
};

}  // namespace trireme::optim
