#pragma once
// Lion (Chen et al., arXiv 2302.06675, algorithm 2). First p -= lr * (sign(beta1 * m + (1 - beta1) * g) +
// weight_decay * p). Then m = beta2 * m + (1 - beta2) * g. Weight decay is decoupled. Each element moves by
// lr: the paper takes a rate 3 to 10 times below adamw's and a weight decay as many times above. State:
// exp_avg m.

#include "trireme/optim/update_rule.h"

namespace trireme::optim {

class Lion : public UpdateRule {
 public:
  /// Throws InvalidArgument: a beta outside [0, 1).
  explicit Lion(const OptimizerOptions& options);
  std::vector<StateTensor> states() const override;
  bool goes_by_elements() const override { return true; }
  void update(UpdateLists& lists, const GroupSettings& group, double lr) const override;

 private:
  double beta1_, beta2_;
};

}  // namespace trireme::optim
