#pragma once
// Learning rate as a pure function of the step: nothing to save, nothing to keep in step between ranks.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trireme::optim {

struct LearningRateOptions {
  std::string schedule = "constant";
  std::int64_t warmup_steps = 0;  ///< linear from lr / warmup_steps at step 0 to lr at step warmup_steps - 1
  double final_fraction = 0;      ///< cosine: ends at this fraction of the base rate
};

class LearningRate {
 public:
  virtual ~LearningRate() = default;
  /// Rate of step 0, 1, ...
  virtual double at(std::int64_t step) const = 0;
};

/// One row per schedule in learning_rate_table.cpp: "constant", "cosine" (Loshchilov and Hutter, arXiv
/// 1608.03983, one cycle over the steps after the warm-up). Throws InvalidArgument: unknown name, warm-up
/// longer than the run.
std::unique_ptr<LearningRate> make_learning_rate(const LearningRateOptions& options, double base_lr,
                                                 std::int64_t total_steps);
std::vector<std::string> learning_rate_names();

}  // namespace trireme::optim
