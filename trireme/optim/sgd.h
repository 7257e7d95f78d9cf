#pragma once
// Stochastic gradient descent with momentum, as PyTorch defines it (Sutskever et al., 2013, with the rate
// outside the momentum): g += weight_decay * p; v = momentum * v + g; p -= lr * (nesterov ? g + momentum * v
// : v).

#include "trireme/optim/optimizer.h"

namespace trireme::optim {

class Sgd : public Optimizer {
 public:
  /// Throws InvalidArgument: momentum outside [0, 1), nesterov without momentum.
  Sgd(const OptimizerOptions& options, NamedTensors parameters);
  void step(double lr) override;
  std::map<std::string, at::Tensor> state() override;

 private:
  OptimizerOptions options_;
  NamedTensors parameters_;
  std::vector<at::Tensor> momentum_;  ///< one per parameter; empty without momentum
};

}  // namespace trireme::optim
