#include "trireme/rpc/parcels.h"

#include "trireme/base/error.h"

namespace trireme::rpc {
namespace {

thread_local Exchange* innermost = nullptr;

}  // namespace

Exchange::Exchange(AgentCore& agent, WorkerId other, std::vector<RefPass>* to, const Handles* from)
    : core(agent), peer(other), written(to), read(from), outer_(std::exchange(innermost, this)) {}
Exchange::~Exchange() { innermost = outer_; }

Exchange& Exchange::current() {
  require(innermost != nullptr, "a remote reference can be written and read in calls alone");
  return *innermost;
}

}  // namespace trireme::rpc
