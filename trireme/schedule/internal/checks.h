#pragma once
// The parts of validate(), in the order in which they run; a later one relies on what the earlier ones have
// proven. Each throws InvalidArgument that names rank, position and action. Pure and thread-safe.

#include "trireme/schedule/internal/holders.h"
#include "trireme/schedule/validate.h"

namespace trireme::schedule {

/// Walks each rank's list by itself: stages where they belong, counts, order, buffers, what is missing.
void check_lists(const Program& program, const Holders& holders, Form form);

/// Compares each link's sends with its receives, in order.
void check_links(const Program& program, const Holders& holders);

/// Runs all ranks against each other: nobody waits for ever.
void check_progress(const Program& program, const Holders& holders, const ValidateOptions& options);

}  // namespace trireme::schedule
