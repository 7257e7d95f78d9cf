#pragma once
// The two ways of writing transfers into an order of computations; see lowering.h. Idle slots are used as
// given and left out of the result. Pure and thread-safe.

#include <vector>

#include "trireme/schedule/program.h"

namespace trireme::schedule {

/// Each rank's list with SEND and RECV. Throws InvalidArgument when the order waits for itself.
std::vector<std::vector<Action>> with_buffered_transfers(const Program& order);

/// The same with BATCH where transfers have to be started as one.
std::vector<std::vector<Action>> with_rendezvous_transfers(const Program& order);

}  // namespace trireme::schedule
