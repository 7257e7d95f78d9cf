#pragma once
// Goodput of a run: the share of its wall time that trained, and the use of the rest, over all starts of the
// run. Measured on rank 0 and kept in goodput.json of the run's folder, which a restart continues. The times
// add up to the wall time, from the first start to the last measurement. Time between a run that ended in
// good order and its resume does not count. The work of rank 0 after its last write is not known when it is
// killed: that time counts as recovering. One thread.

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/log.h"
#include "trireme/telemetry/sink.h"

namespace trireme::telemetry {

/// Use of a run's time.
enum class Phase {
  kTraining,    ///< steps that count: compute, communication, metrics
  kDataWait,    ///< steps that waited for data
  kSaving,      ///< blocked by checkpoints and, at the end, the weights
  kEvaluation,  ///< on held-out data
  kLost,        ///< training of steps after the checkpoint from which the run continued
  kStarting,    ///< from the start of the process to the first step
  kRecovering   ///< from the last measurement before a failure to the first step after it
};
inline constexpr std::size_t kNumPhases = 7;
/// "training", "data_wait", "saving", "evaluation", "lost", "starting", "recovering".
std::string_view name_of(Phase phase);

/// Record of a run's time.
struct GoodputRecord {
  /// How much of the training was done at a step.
  struct Mark {
    std::int64_t step = 0;
    double training_s = 0;
  };

  std::array<double, kNumPhases> seconds{};  ///< by Phase
  std::int64_t steps = 0;                    ///< done at the last measurement
  std::int64_t lost_steps = 0;               ///< done twice
  std::int64_t interruptions = 0;            ///< starts of the run that did not end in good order
  double until_unix_s = 0;                   ///< of the last measurement
  bool ended = true;                         ///< in good order
  std::vector<Mark> marks = {};              ///< at saves, ascending, the newest kMaxMarks

  static constexpr std::size_t kMaxMarks = 64;

  double wall_s() const;
  /// Of the wall time; all together are 1, or 0 where nothing was measured.
  double share(Phase phase) const;
  /// Mean wall time between interruptions; infinity without any.
  double between_interruptions_s() const;
  /// Training time up to that step: between two marks it grows evenly.
  double training_until_s(std::int64_t step) const;
};

/// The record of a run that continues after step `step`: later training is lost.
GoodputRecord continued(GoodputRecord record, std::int64_t step);

/// "goodput" (of training), "goodput_data_wait", ... as shares, "goodput_wall_s", "lost_steps",
/// "interruptions".
void add_goodput(Record& summary, const GoodputRecord& goodput);
/// "goodput 91.2 % of 3m 20s: evaluation 4.1 %, ..."; shares that round to 0 are left out.
std::string describe(const GoodputRecord& goodput);

/// Empty where there is no such file. Throws DataError that names the file when it holds something else.
std::optional<GoodputRecord> read_goodput(const std::filesystem::path& path);
/// Atomically, not synced. Throws DataError.
void write_goodput(const std::filesystem::path& path, const GoodputRecord& goodput);

/// Measures the process that writes the run.
class GoodputMeter {
 public:
  /// Begins, with the times of earlier starts of the run, if there are any; the run continues after `step`.
  /// The process began at `began_unix_s`. Before that nothing is measured.
  void open(const std::filesystem::path& path, std::optional<GoodputRecord> earlier, std::int64_t step,
            double began_unix_s, const Log& log);
  /// The first step of the process begins.
  void begin_steps();
  /// A step has ended, which waited for data and saves for that long.
  void step(double data_wait_s, double saving_s);
  /// The time since the last measurement went to that.
  void lap(Phase phase);
  /// A checkpoint of that step was handed over; all since the last measurement was its cost.
  void saved(std::int64_t step);
  /// Writes the record; the run has done `steps`. A file that cannot be written is one warning.
  void write(std::int64_t steps);
  /// The run has ended in good order.
  void end(std::int64_t steps);

  const GoodputRecord& record() const { return record_; }
  /// For which saves have blocked training since begin_steps().
  double saving_of_process_s() const {
    return record_.seconds[static_cast<std::size_t>(Phase::kSaving)] - saving_before_s_;
  }

 private:
  double& of(Phase phase) { return record_.seconds[static_cast<std::size_t>(phase)]; }
  double since_last_s();

  std::filesystem::path path_;  ///< empty: not open
  GoodputRecord record_;
  Phase first_ = Phase::kStarting;
  double saving_before_s_ = 0;  ///< by earlier processes
  double last_s_ = 0;           ///< on the clock of now_s()
  std::optional<Log> log_;
  bool warned_ = false;
};

}  // namespace trireme::telemetry
