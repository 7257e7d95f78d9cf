#pragma once
// The timeline of a run (run.timeline): planned beside measured rows per rank for a few steps of its
// pipeline, as one HTML page (schedule/timeline_page.h).

#include <string>

#include "trireme/comm/context.h"
#include "trireme/schedule/program.h"
#include "trireme/telemetry/aligned_clock.h"
#include "trireme/telemetry/trace.h"
#include "trireme/train/parallel_plan.h"

namespace trireme::train {

/// The page, on rank 0, of the first steps that the trace has whole, three at most; of the first replica of
/// the pipeline. Empty when the trace has none. Collective. Throws CommError.
std::string timeline_of(const ParallelPlan& plan, comm::Context& context, const telemetry::Trace& trace,
                        const telemetry::AlignedClock& clock, const schedule::Program& program);

}  // namespace trireme::train
