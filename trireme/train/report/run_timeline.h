#pragma once
// The timeline of a run (run.timeline): planned and measured rows per rank for a few steps of its
// pipeline, as one HTML page (schedule/timeline_page.h).

#include <string>

#include "trireme/comm/context.h"
#include "trireme/telemetry/aligned_clock.h"
#include "trireme/telemetry/trace.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {

/// Steps as they were, and as the simulator has them with the mean times that their own actions took.
struct RunTimeline {
  std::string page;        ///< of the first three; empty: no step was traced
  std::size_t steps = 0;   ///< that were looked at, 50 at most
  double measured_s = 0;   ///< median, from the first begin of an action on any rank to the last end
  double simulated_s = 0;  ///< the same, of the program
};

/// On rank 0, of all ranks in the first steps that the trace has; the process's first two, in which memory
/// and connections are made, only where there are no others. Collective. Throws CommError.
RunTimeline timeline_of(const Trainer& trainer, comm::Context& context, const telemetry::Trace& trace,
                        const telemetry::AlignedClock& clock);

}  // namespace trireme::train
