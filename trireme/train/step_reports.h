#pragma once
// What every rank learns about a step: the loss over the global batch, whether any rank was asked to stop,
// and whether some rank's loss is no finite number. One small all-reduce per step, which runs while the next
// step computes and is read when that one ends: decisions are the same on all ranks and one step late, and no
// rank waits. One thread; collective like the all-reduce below it.

#include <cstdint>
#include <optional>

#include "trireme/comm/group.h"

namespace trireme::train {

/// Of this rank when it is handed in, of all ranks when it comes out.
struct StepReport {
  std::int64_t step = 0;  ///< 1 for the first step of a run
  double loss = 0;        ///< in: sum over this rank's samples / global batch; out: mean over the batch
  double lr = 0;
  std::int64_t samples = 0;                         ///< of the global batch
  std::optional<double> grad_norm = std::nullopt;   ///< where it was computed; before clipping
  std::optional<double> loss_scale = std::nullopt;  ///< with which the step was done; only in fp16
  bool skipped = false;  ///< gradients were not finite, and nothing was updated; the same on all ranks
  int stop_signal = 0;   ///< 0, SIGINT or SIGTERM
};

class StepReports {
 public:
  explicit StepReports(comm::Group group);

  /// Starts the exchange of this rank's part. The one before has to be finished.
  void start(const StepReport& mine);
  /// Waits for the exchange under way; nothing when there is none. The loss of a step that was skipped may be
  /// no number. Throws DivergedError that names step and ranks when that of another step, or its gradient
  /// norm, is not finite; CommError.
  std::optional<StepReport> finish();

 private:
  comm::Group group_;
  at::Tensor votes_;  ///< loss, ranks with SIGINT, ranks with SIGTERM, then per rank: 1 if not finite
  comm::Pending pending_;
  std::optional<StepReport> report_;
};

}  // namespace trireme::train
