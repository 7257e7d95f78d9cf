#pragma once
// A run whose folder holds its end already, weights and summary.

#include <optional>

#include "trireme/comm/context.h"
#include "trireme/train/run/run.h"
#include "trireme/train/run/run_folder.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {

/// What the run in the folder ended with, when nothing is left to do for `trainer`; rank 0 says so.
/// Collective. Throws DataError.
std::optional<RunResult> earlier_end_of(const Trainer& trainer, comm::Context& context,
                                        const RunFolder& folder);

}  // namespace trireme::train
