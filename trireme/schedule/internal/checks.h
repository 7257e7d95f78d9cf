#pragma once
// The parts of validate(), in the order in which they run; a later one relies on the results of earlier ones.
// Each throws InvalidArgument that names rank, position and action. Pure and thread-safe.

#include "trireme/schedule/internal/holders.h"
#include "trireme/schedule/validate.h"

namespace trireme::schedule {

/// Checks each rank's list by itself: places of stages, counts, order, buffers, missing actions.
void check_lists(const Program& program, const Holders& holders, Form form);

/// Compares each link's sends with its receives, in order.
void check_links(const Program& program, const Holders& holders);

/// Runs all ranks against each other: no wait is endless.
void check_progress(const Program& program, const Holders& holders, const ValidateOptions& options);

}  // namespace trireme::schedule
