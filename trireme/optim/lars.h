#pragma once
// LARS (You, Gitman, Ginsburg, arXiv 1708.03888, algorithm 1): d = g + weight_decay * p;
// r = trust_coefficient * |p| / (|g| + weight_decay * |p|); v = momentum * v + lr * r * d; p -= v. As in the
// paper the rate is inside the momentum (PyTorch's sgd has it outside). The ratio is 1 where a norm is 0, and
// for tensors of at most one dim when decay_1d is false. State: momentum v, absent when the momentum is 0.

#include "trireme/optim/update_rule.h"

namespace trireme::optim {

class Lars : public UpdateRule {
 public:
  /// Throws InvalidArgument: momentum outside [0, 1), trust coefficient not positive.
  explicit Lars(const OptimizerOptions& options);
  std::vector<StateTensor> states() const override;
  void update(UpdateLists& lists, const GroupSettings& group, double lr) const override;

 private:
  double momentum_, trust_coefficient_;
};

}  // namespace trireme::optim
