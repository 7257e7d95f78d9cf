#pragma once
// The exchange of step results over all ranks: the loss over the global batch, requests to stop on any rank,
// and whether some rank's loss is not finite. There is one small all-reduce per step. It runs while the next
// step computes, and is read when that one ends. So decisions are the same on all ranks and one step late,
// and no rank waits. On a device they are two steps late: the numbers of a step are copied to the host while
// the next step is submitted to the device. One thread; collective like the all-reduce below it.

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/optim/gradient_noise.h"
#include "trireme/train/step/decision.h"

namespace trireme::train {

/// How a rank has waited for data so far.
struct DataWait {
  double seconds = 0;
  std::string_view stage = {};  ///< of loading, in which its threads have spent most; empty: unknown
};

/// A stop signal: the processes of an elastic job continue in its next world (comm/elastic.h).
inline constexpr int kNextWorld = -1;

/// Of this rank when it is handed in, of all ranks when it comes out.
struct StepReport {
  std::int64_t step = 0;  ///< 1 for the first step of a run
  double loss = 0;        ///< in: this rank's part of the mean; out: mean over the global batch
  double lr = 0;
  std::int64_t samples = 0;     ///< of the global batch
  std::int64_t full_batch = 0;  ///< samples of a full one at that step: `samples`, but at the end of an epoch
  double count = 0;             ///< of it, divisor of the sum of losses
  /// In, where ranks do not know the whole batch: the divisor of this rank's sum of losses; `loss` is then
  /// that sum. Their sums make loss and count.
  std::optional<double> own_count = std::nullopt;
  std::optional<double> grad_norm = std::nullopt;   ///< where it was computed; before clipping
  std::optional<double> loss_scale = std::nullopt;  ///< with which the step was done; only in fp16
  /// Asynchronous pipelines, of this rank's stage: most updates between a forward and its backward, and most
  /// versions of the weights in memory, so far.
  std::optional<int> staleness = std::nullopt, weight_versions = std::nullopt;
  /// Where the noise of gradients is measured. In: this rank's sums; out: of all ranks.
  std::optional<optim::GradientSquares> squares = std::nullopt;
  std::optional<double> noise_scale = std::nullopt;  ///< in samples, over the last part of the run
  bool skipped = false;  ///< gradients were not finite, and nothing was updated; the same on all ranks
  int stop_signal = 0;   ///< 0, SIGINT, SIGTERM, or kNextWorld
  std::vector<DataWait> data_waits = {};  ///< in: of this rank; out: of each
  /// Seconds of the step in which a rank did not wait for another. In: of this rank; out: of each.
  std::vector<double> work_s = {};
  double step_s =
      0;  ///< out: seconds since the report before it, the mean over the ranks; 0: it is the first
  std::vector<Decision> decisions = {};  ///< changes by the run since the report before it
};

/// Functions that complete a report with numbers that a device had to compute first, called in this order.
using Completions = std::vector<std::function<void(StepReport&)>>;

/// When the numbers of a step are on the host.
enum class Numbers {
  kAtOnce,    ///< the CPU's
  kStepLate,  ///< a device's: while it computes the next step
};

/// Whether reports of several steps share an exchange.
enum class Bundling {
  kNone,    ///< each report goes by itself
  kByTime,  ///< those of a quarter of a second go together, as long as a step took by the last ones
};

class StepReports {
 public:
  /// `depth`: exchanges under way at most. Above 1 it is for ranks that come to a step at different times (an
  /// asynchronous pipeline, sites): decisions are as many exchanges late.
  explicit StepReports(comm::Group group, int depth = 1, Bundling bundling = Bundling::kNone,
                       Numbers numbers = Numbers::kAtOnce);

  /// Submits this rank's part, to be completed. Returns the result of finish() for the oldest step whose
  /// exchange is over. Waits for one where `depth` are in flight and the next is due.
  std::optional<StepReport> start(StepReport mine, Completions completions = {});
  /// The oldest report that is to come, waiting for it; nothing when there is none. The loss of a step that
  /// was skipped may be no number. Throws DivergedError when that of another step, or its gradient norm, is
  /// not finite: it names the step and the ranks whose loss it is, or where all are numbers those with the
  /// norm; CommError.
  std::optional<StepReport> finish();

 private:
  struct Exchange {
    std::vector<StepReport> reports = {};
    at::Tensor slots;  ///< of each: loss and count, ranks with SIGINT and SIGTERM, then the values of each
                       ///< rank
    comm::Pending pending = {};
  };
  struct Ready {
    StepReport report;
    std::vector<double> slots;
  };

  /// A report whose numbers may still be on a device.
  struct Unread {
    StepReport report;
    Completions completions;
    StepReport complete();
  };

  std::int64_t num_slots() const;
  void add(const StepReport& mine);
  bool is_due(std::size_t num_reports) const { return num_reports >= max_in_bundle_; }
  void write(const StepReport& mine, double* slots) const;
  void send();
  void complete();
  StepReport told();

  comm::Group group_;
  const std::size_t depth_;
  const Bundling bundling_;
  const Numbers numbers_;
  std::optional<Unread> unread_;  ///< of the last step
  std::size_t max_in_bundle_ = 1;
  double began_s_ = 0;             ///< the last start()
  std::vector<at::Tensor> spare_;  ///< slots of no exchange
  Exchange filling_;
  std::deque<Exchange> under_way_;
  std::deque<Ready> ready_;  ///< their exchanges are over
};

}  // namespace trireme::train
