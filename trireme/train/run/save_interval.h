#pragma once
// When a run with checkpoint.interval = "auto" saves: steps apart by Daly's estimate, from the time for which
// saves block training, the time of a step and the mean time between failures (plan/goodput.h). Rank 0
// measures and chooses, all ranks follow. The numbers of a run do not depend on it. Values; one thread.

#include <cstdint>
#include <limits>
#include <string>

#include "trireme/telemetry/goodput.h"
#include "trireme/train/config/run_config.h"

namespace trireme::train {

/// How often a job fails, and how that is known.
struct FailureRate {
  double between_s = 0;  ///< mean
  std::string reason;    ///< "no failure in 2h 00m of this run, and one in 24h 00m was assumed"
};

/// checkpoint.mean_time_between_failures_s, where it is not 0. Else estimated from the run's failures: one in
/// a day is assumed besides those that were seen.
FailureRate failure_rate_of(const CheckpointOptions& options, const telemetry::GoodputRecord& goodput);

/// Inputs of the choice of an interval.
struct SaveCosts {
  double save_s = 0;  ///< for which a save blocks training; less than 0.1 ms counts as that
  double step_s = 0;
  double between_failures_s = 0;
};

/// Daly's interval in whole steps, at least 1. Throws InvalidArgument: a time that is negative or not finite.
std::int64_t steps_between_saves(const SaveCosts& costs);

/// "checkpoints every 512 steps (13m 45s): Daly's interval for ..."
std::string describe(std::int64_t steps, const SaveCosts& costs, const FailureRate& rate);

/// The steps of the next save and of the next choice; the same on every rank.
class SaveInterval {
 public:
  /// Of a process whose run has done `steps`. The first save comes after checkpoint.every_steps steps of it,
  /// or after 10 where that is 0.
  SaveInterval(const CheckpointOptions& options, std::int64_t steps);

  /// Whether the state after that step is to be saved. Never with checkpoint.interval = "steps".
  bool saves(std::int64_t step) const { return step == next_save_; }
  /// Whether all ranks choose after that step: two steps after a save, as updates wait for its copy.
  bool chooses(std::int64_t step) const { return step == next_choice_; }
  /// The newest checkpoint is of that step.
  void saved(std::int64_t step);
  /// The ranks have agreed, after step `step`, on saves that are `apart` steps apart. Whether that differs
  /// from the choice before by more than a quarter.
  bool choose(std::int64_t step, std::int64_t apart);
  /// By this process.
  double num_saves() const { return num_saves_; }

 private:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  bool automatic_;
  std::int64_t next_save_ = kNever, next_choice_ = kNever;
  std::int64_t last_save_ = 0, apart_ = 0;
  double num_saves_ = 0;
};

}  // namespace trireme::train
