#pragma once
// Results of an earlier start in the folder of a run: its end, with weights and summary, and its goodput.

#include <optional>

#include "trireme/comm/context.h"
#include "trireme/telemetry/goodput.h"
#include "trireme/train/run/run.h"
#include "trireme/train/run/run_folder.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {

/// Result of the run in the folder, when nothing is left to do for `trainer`; rank 0 decides. Collective.
/// Throws DataError.
std::optional<RunResult> earlier_end_of(const Trainer& trainer, comm::Context& context,
                                        const RunFolder& folder);

/// The goodput that the folder records. None: there is no record, or, with a warning, one that cannot be
/// read.
std::optional<telemetry::GoodputRecord> earlier_goodput(const RunFolder& folder, const Log& log);

}  // namespace trireme::train
