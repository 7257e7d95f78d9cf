#pragma once
// Under torchrun rank 0 passes the address of its store to the others through the store of torchrun's agent.
// That one is c10d's TCPStore, whose waits have no limit and which is open to all hosts that reach it: it is
// used for this one address and nothing else.

#include "trireme/comm/launch_environment.h"
#include "trireme/wire/socket.h"

namespace trireme::comm {

/// Both end by the timeout, for any behaviour of the agent; CommError.
void tell_through_agent(const LaunchEnvironment& environment, const wire::Endpoint& store, double timeout_s);
wire::Endpoint learn_from_agent(const LaunchEnvironment& environment, double timeout_s);

}  // namespace trireme::comm
