#pragma once
// Learning rate over the steps of a run. All schedules but one are pure functions of the step: nothing to
// save, nothing to keep in step between ranks. reduce_on_plateau also follows a metric: every rank observes
// the same numbers, and its state is saved. Not thread-safe.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace trireme::optim {

/// Steps are those of the optimizer, fractions are of the base rate. "After the warm-up" counts from the
/// first step after it. Each schedule reads the options that name it.
struct LearningRateOptions {
  std::string schedule = "constant";
  /// All: linear from lr / warmup_steps at step 0 to lr at step warmup_steps - 1. one_cycle: along a cosine
  /// from initial_fraction. inverse_sqrt: also the unit in which it falls.
  std::int64_t warmup_steps = 0;
  /// one_cycle: where the warm-up begins, in [0, 1]; PyTorch's 1 / div_factor.
  double initial_fraction = 0.04;
  /// cosine, polynomial, wsd, one_cycle: the end; reduce_on_plateau: the least. In [0, 1].
  double final_fraction = 0;
  /// step, multi_step, exponential, reduce_on_plateau: factor of the rate, in (0, 1).
  double factor = 0.1;
  /// step: it falls at every multiple after the warm-up; exponential: it falls by `factor` over so many,
  /// evenly. At least 1 for both.
  std::int64_t period_steps = 0;
  /// multi_step: the steps of the run at which it falls, rising, after the warm-up and within the run.
  std::vector<std::int64_t> milestones = {};
  double power = 1;              ///< polynomial, > 0; 1: linear
  std::int64_t decay_steps = 0;  ///< wsd: last steps of the run, over which the rate falls, at least 1
  std::int64_t patience = 10;    ///< reduce_on_plateau: observations in a row without progress before a fall
  double threshold = 1e-4;       ///< reduce_on_plateau: progress is below best * (1 - threshold), in [0, 1)
  std::int64_t cooldown = 0;     ///< reduce_on_plateau: observations after a fall that do not count
  std::string scale_with_batch = "none";  ///< scaled_lr: "none", "linear", "sqrt"
  std::int64_t reference_batch = 0;       ///< scaled_lr: samples per step for which lr was chosen
};

class LearningRate {
 public:
  virtual ~LearningRate() = default;
  /// Rate of step 0, 1, ... After the end of the run, a shape that ends with it keeps its last value. Throws
  /// InvalidArgument: negative step.
  virtual double at(std::int64_t step) const = 0;
  /// Takes note of a metric, lower is better, for instance the loss of an evaluation. Every rank observes the
  /// same bits (an all-reduced number), or the ranks' rates drift apart. Pure schedules pay no attention.
  virtual void observe(double metric) = 0;
  /// State from the metrics, by name; shared, not copied: restore it in place. Empty when pure.
  virtual std::map<std::string, at::Tensor> state() = 0;
};

/// One row per schedule in learning_rate_table.cpp. Throws InvalidArgument: unknown name (with the nearest
/// known one), a value out of range, a schedule that is longer than the run.
std::unique_ptr<LearningRate> make_learning_rate(const LearningRateOptions& options, double base_lr,
                                                 std::int64_t total_steps);
std::vector<std::string> learning_rate_names();

/// `lr`, chosen for batches of `reference_batch` samples, for steps of `global_batch` samples: times the
/// ratio of the two ("linear", Goyal et al., arXiv 1706.02677), or its square root ("sqrt", Krizhevsky, arXiv
/// 1404.5997; for Adam and its kin Malladi et al., arXiv 2205.10287), or 1 ("none"). Throws
/// InvalidArgument.
double scaled_lr(const LearningRateOptions& options, double lr, std::int64_t global_batch);
std::vector<std::string> batch_scaling_names();

}  // namespace trireme::optim
