#pragma once
// Lowers the rate when a metric makes no progress, as PyTorch's ReduceLROnPlateau does with mode "min" and a
// relative threshold. An observation is progress when it is below best * (1 - threshold); NaN is no progress.
// After more than `patience` others in a row, the rate is multiplied by `factor`, but not below
// final_fraction of the base rate. The next `cooldown` observations do not count. The state is that of
// PyTorch: best, bad, cooldown_left, and the factor reached so far.

#include "trireme/optim/learning_rate.h"

namespace trireme::optim {

class ReduceOnPlateau : public LearningRate {
 public:
  /// `shaped` is the rate that would be without metrics. Options as make_learning_rate has checked them.
  ReduceOnPlateau(std::unique_ptr<LearningRate> shaped, const LearningRateOptions& options);
  double at(std::int64_t step) const override;
  void observe(double metric) override;
  std::map<std::string, at::Tensor> state() override;

 private:
  std::unique_ptr<LearningRate> shaped_;
  LearningRateOptions options_;
  at::Tensor best_, bad_, cooldown_left_, factor_;  ///< f64, no dims, on the CPU
};

}  // namespace trireme::optim
