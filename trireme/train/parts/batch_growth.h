#pragma once
// train.batch_ramp_by = "noise": the global batch takes the next size of train.batch_ramp_sizes when the
// measured gradient noise scale has reached it, and never a larger one: below the noise scale twice the batch
// is nearly as good as twice the steps (McCandlish et al., arXiv 1812.06162). It never shrinks. Its decisions
// are a function of reports and of the steps at which sizes ended, which a checkpoint keeps. A value.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/train/config/run_config.h"
#include "trireme/train/step/step_reports.h"

namespace trireme::train {

class BatchGrowth {
 public:
  explicit BatchGrowth(const TrainOptions& train);

  /// The size of the last steps that are known, and the next one.
  std::int64_t size() const { return sizes_[ends_.size()]; }
  /// The next size holds from step `from` on, counted from 0; why, in words. None: it stays.
  std::optional<std::string> observe(const StepReport& report, std::int64_t from);
  /// The steps after which sizes have ended.
  const std::vector<std::int64_t>& ends() const { return ends_; }
  void restore(std::vector<std::int64_t> ends) { ends_ = std::move(ends); }

  static constexpr std::int64_t kMeasurements = 10;  ///< with a size, before the next one

 private:
  const std::int64_t every_steps_;
  std::vector<std::int64_t> sizes_;  ///< with train.global_batch
  std::vector<std::int64_t> ends_;
};

}  // namespace trireme::train
