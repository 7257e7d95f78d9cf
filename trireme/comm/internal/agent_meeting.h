#pragma once
// Under torchrun rank 0 tells the others where its store is through the store that torchrun's agent serves.
// That one is c10d's TCPStore, whose waits have no limit and which is open to whoever reaches it: it is used
// for this one address and nothing else.

#include "trireme/comm/launch_environment.h"
#include "trireme/wire/socket.h"

namespace trireme::comm {

/// Both end by the timeout, whatever the agent does; CommError.
void tell_through_agent(const LaunchEnvironment& environment, const wire::Endpoint& store, double timeout_s);
wire::Endpoint learn_from_agent(const LaunchEnvironment& environment, double timeout_s);

}  // namespace trireme::comm
