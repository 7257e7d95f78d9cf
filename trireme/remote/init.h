#pragma once
// A world of ranks as a group of workers that call each other.
//
//   auto context = comm::Context::from_environment();
//   auto agent = remote::init(*context, text("worker", context->rank()));
//   ...
//   agent->leave();

#include <memory>
#include <string>

#include "trireme/comm/context.h"
#include "trireme/remote/autograd.h"

namespace trireme::remote {

/// Joins the group at the world's store, with autograd, the world's secret and the context's trace; ranks on
/// several hosts listen at the address that faces rank 0's. Not collective: a call to a worker that has not
/// joined waits for it. `options`: name, directory, security, listen and trace are set here. The context
/// outlives the agent. Throws as join() does.
std::shared_ptr<rpc::Agent> init(comm::Context& context, const std::string& name,
                                 rpc::AgentOptions options = {});

}  // namespace trireme::remote
