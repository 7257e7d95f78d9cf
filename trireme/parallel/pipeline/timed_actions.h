#pragma once
// Actions of the ranks of a pipeline with their times, from their traces (telemetry/trace.h): the executor's
// actions without the time in which they waited for a message. For drawing a step next to its plan
// (schedule/timeline_page.h), and for costs of actions (schedule::mean_costs). Set the trace in the context
// before the pipeline is made.

#include <cstdint>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/schedule/timed_action.h"
#include "trireme/telemetry/aligned_clock.h"
#include "trireme/telemetry/trace.h"

namespace trireme::parallel {

/// A span of time on the rank's own monotonic clock: one step.
struct TimeSpan {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

/// The calling rank's actions that began in the span, in order, in seconds of rank 0's clock. The time of an
/// action before the end of its last wait counts as waiting: an action waits for its inputs first.
std::vector<schedule::TimedAction> actions_in(const telemetry::Trace& trace, const TimeSpan& span,
                                              const telemetry::AlignedClock& clock);

/// The lists of all ranks of the group, on every rank, in seconds from the first begin of any action.
/// Collective.
schedule::TimedRanks gather_actions(comm::Group& group, const std::vector<schedule::TimedAction>& mine);

}  // namespace trireme::parallel
