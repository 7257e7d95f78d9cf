#pragma once
// RMSprop (Tieleman and Hinton, Coursera lecture 6.5, 2012; centered: Graves, arXiv 1308.0850), as PyTorch
// defines it: g += weight_decay * p; s = alpha * s + (1 - alpha) * g^2; centered: a = alpha * a + (1 - alpha)
// * g and s - a^2 in place of s below; u = g / (sqrt(s) + eps); with momentum: b = momentum * b + u, else b =
// u; p -= lr * b. State: square_avg s, grad_avg a (centered), momentum b (momentum above 0).

#include "trireme/optim/update_rule.h"

namespace trireme::optim {

class RmsProp : public UpdateRule {
 public:
  /// Throws InvalidArgument: momentum or alpha outside [0, 1), eps not positive.
  explicit RmsProp(const OptimizerOptions& options);
  std::vector<StateTensor> states() const override;
  bool goes_by_elements() const override { return true; }
  void update(UpdateLists& lists, const GroupSettings& group, double lr) const override;

 private:
  double momentum_, alpha_, eps_;
  bool centered_;
};

}  // namespace trireme::optim
