#pragma once
// The timeline of a run (run.timeline): planned beside measured rows per rank for a few steps of its
// pipeline, as one HTML page (schedule/timeline_page.h).

#include <string>

#include "trireme/comm/context.h"
#include "trireme/telemetry/aligned_clock.h"
#include "trireme/telemetry/trace.h"
#include "trireme/train/trainer.h"

namespace trireme::train {

/// The page, on rank 0, of all ranks in the first steps that the trace has, three at most; the process's
/// first two, in which memory and connections are made, only where there are no others. Empty when the trace
/// has none. Collective. Throws CommError.
std::string timeline_of(const Trainer& trainer, comm::Context& context, const telemetry::Trace& trace,
                        const telemetry::AlignedClock& clock);

}  // namespace trireme::train
