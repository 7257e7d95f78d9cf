#pragma once
// The trace of a run (run.trace). It is turned on for this rank, and the clocks of the ranks are aligned. At
// the end rank 0 writes the parts of all ranks into one file. After an error that is not possible: each rank
// that is still running then writes its own part next to it, as a separate file (trace.rank1.json). The
// timeline (run.timeline) is drawn from the same spans. A resumed run has its own trace: the files of the
// steps before it stay, as trace.until-step-120.json. It is created before everything that works with the
// context, and destroyed after it. Collective. One thread.

#include <filesystem>
#include <memory>

#include "trireme/comm/context.h"
#include "trireme/telemetry/aligned_clock.h"
#include "trireme/telemetry/trace.h"
#include "trireme/train/plan/parallel_plan.h"
#include "trireme/train/run/run.h"

namespace trireme::train {

class Trainer;

class RunTrace {
 public:
  /// Does nothing, then and later, when run.trace and run.timeline are empty. Throws CommError, DataError.
  RunTrace(const ParallelPlan& plan, comm::Context& context, RunStart start);
  /// After an error writes this rank's part.
  ~RunTrace();
  RunTrace(const RunTrace&) = delete;
  RunTrace& operator=(const RunTrace&) = delete;

  /// The run has ended well: collects all parts. A file that cannot be written is a warning: the run does not
  /// fail for it. The timeline is of the program that `trainer` has run. Throws CommError.
  void finish(const Trainer& trainer);
  /// There was nothing to trace: no file is written or replaced.
  void discard();

 private:
  std::string part() const;
  void write_timeline(const Trainer& trainer);
  void write_whole();
  void make_way_to(const std::filesystem::path& path) const;
  void keep_earlier(const std::filesystem::path& path) const;
  void write_own_part() const;

  const RunConfig& config_;
  comm::Context& context_;
  const std::filesystem::path path_;
  std::int64_t steps_before_ = 0;            ///< of the checkpoint that the run continues from
  std::unique_ptr<telemetry::Trace> trace_;  ///< empty when there is nothing to do
  telemetry::ClockSample first_clock_, last_clock_;
};

/// The steps that run.trace_steps = "100:120" means, both ends included; empty means all. Throws
/// InvalidArgument.
telemetry::TraceOptions trace_options(const RunOptions& options);

}  // namespace trireme::train
