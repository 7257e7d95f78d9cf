#pragma once
// Adam with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101), as PyTorch defines it:
// p -= lr * weight_decay * p, then Adam's bias-corrected update with eps outside the root.

#include "trireme/optim/optimizer.h"

namespace trireme::optim {

class AdamW : public Optimizer {
 public:
  /// Throws InvalidArgument: beta outside [0, 1), eps not positive.
  AdamW(const OptimizerOptions& options, NamedTensors parameters);
  void step(double lr) override;
  std::map<std::string, at::Tensor> state() override;

 private:
  OptimizerOptions options_;
  NamedTensors parameters_;
  std::vector<at::Tensor> exp_avg_, exp_avg_sq_;
  std::vector<at::Tensor> steps_;  ///< f32, no dims: a parameter without a gradient does not age
};

}  // namespace trireme::optim
