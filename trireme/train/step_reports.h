#pragma once
// What every rank learns about a step: the loss over the global batch, whether any rank was asked to stop,
// and whether some rank's loss is no finite number. One small all-reduce per step, which runs while the next
// step computes and is read when that one ends: decisions are the same on all ranks and one step late, and no
// rank waits. One thread; collective like the all-reduce below it.

#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>
#include <vector>

#include "trireme/comm/group.h"

namespace trireme::train {

/// How a rank has waited for data so far.
struct DataWait {
  double seconds = 0;
  std::string_view stage = {};  ///< of loading, in which its threads have spent most; empty: not told
};

/// Of this rank when it is handed in, of all ranks when it comes out.
struct StepReport {
  std::int64_t step = 0;  ///< 1 for the first step of a run
  double loss = 0;        ///< in: this rank's part of the mean; out: mean over the global batch
  double lr = 0;
  std::int64_t samples = 0;                         ///< of the global batch
  double count = 0;                                 ///< of it, what the sum of losses was divided by
  std::optional<double> grad_norm = std::nullopt;   ///< where it was computed; before clipping
  std::optional<double> loss_scale = std::nullopt;  ///< with which the step was done; only in fp16
  /// Asynchronous pipelines, of this rank's stage: most updates between a forward and its backward, and most
  /// versions of the weights in memory, so far.
  std::optional<int> staleness = std::nullopt, weight_versions = std::nullopt;
  bool skipped = false;  ///< gradients were not finite, and nothing was updated; the same on all ranks
  int stop_signal = 0;   ///< 0, SIGINT or SIGTERM
  std::vector<DataWait> data_waits = {};  ///< in: of this rank; out: of each
};

class StepReports {
 public:
  /// `depth`: exchanges under way at most. Above 1 it is for ranks that come to a step at different times (an
  /// asynchronous pipeline): decisions are as many steps late.
  explicit StepReports(comm::Group group, int depth = 1);

  /// Starts the exchange of this rank's part; returns finish() of the oldest one where `depth` are under way.
  std::optional<StepReport> start(const StepReport& mine);
  /// Waits for the oldest exchange under way; nothing when there is none. The loss of a step that was skipped
  /// may be no number. Throws DivergedError when that of another step, or its gradient norm, is not finite:
  /// it names the step and the ranks whose loss it is, or where all are numbers those with the norm;
  /// CommError.
  std::optional<StepReport> finish();

 private:
  struct Exchange {
    StepReport report;
    at::Tensor votes;  ///< loss, ranks with SIGINT, ranks with SIGTERM, then of each rank what it says
    comm::Pending pending;
  };

  comm::Group group_;
  const std::size_t depth_;
  std::vector<at::Tensor> spare_;  ///< votes of no exchange
  std::deque<Exchange> under_way_;
};

}  // namespace trireme::train
