#include "trireme/rpc/agent.h"

namespace trireme::rpc {
namespace {

thread_local AgentCore* serving = nullptr;

}  // namespace

internal::AgentScope::AgentScope(AgentCore& core) : outer_(std::exchange(serving, &core)) {}
internal::AgentScope::~AgentScope() { serving = outer_; }
AgentCore* internal::AgentScope::current() { return serving; }

std::shared_ptr<void> internal::checked(const AnyValue& value, const std::type_info& type) {
  require(*value.type == type, "this reference is used as one to ", readable(type.name()), ", and refers to ",
          readable(value.type->name()));
  return value.object;
}

void internal::throw_gone(const AgentCore& core, const RefId& id) {
  throw InvalidArgument(
      text("value ", id.number, " of worker '", core.info().name,
           "' is gone: whoever passed this reference on ended before the owner knew of it, or "
           "the owner has left"));
}

bool internal::may_try_again(const Callee& to, const CallOptions& options, const std::exception_ptr& error) {
  if (options.tries <= 1 || !to.is_name()) return false;
  try {
    std::rethrow_exception(error);
  } catch (const WorkerEnded&) {
    return true;
  } catch (...) {
    return false;
  }
}

Agent::~Agent() {
  if (!is_borrowed_) core_->stop();
}

std::shared_ptr<Agent> this_agent() {
  AgentCore* const core = internal::AgentScope::current();
  require(core != nullptr,
          "this_agent() is for functions that another worker has called: this thread runs none");
  return std::make_shared<Agent>(core->shared_from_this(), Agent::Borrowed{});
}

}  // namespace trireme::rpc
