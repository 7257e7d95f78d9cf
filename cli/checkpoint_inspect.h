#pragma once
// `trireme checkpoint inspect` and `verify`: text or JSON on standard output.

#include "cli/checkpoint_place.h"

namespace trireme::cli {

enum class ReportFormat { kText, kJson };

/// The newest checkpoint of the place, or its file. Throws DataError.
void inspect_checkpoints(const CheckpointPlace& place, ReportFormat format);

/// All checkpoints of the place, or its file. True when nothing is wrong. Throws DataError.
bool verify_checkpoints(const CheckpointPlace& place, ReportFormat format);

}  // namespace trireme::cli
