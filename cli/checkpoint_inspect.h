#pragma once
// `trireme checkpoint inspect` and `verify`: text or JSON on standard output.

#include "cli/checkpoint_place.h"
#include "cli/report_format.h"

namespace trireme::cli {

/// The newest checkpoint of the place, or its file. Throws DataError.
void inspect_checkpoints(const CheckpointPlace& place, ReportFormat format);

/// All checkpoints of the place, or its file. True when nothing is wrong. Throws DataError.
bool verify_checkpoints(const CheckpointPlace& place, ReportFormat format);

}  // namespace trireme::cli
