#pragma once
// A coordinator that is one of several: its memory is in etcd, and at any time one of the processes that call
// this leads. The others wait, turn away who asks them, and take over when the leader is gone.

#include <stop_token>
#include <string>

#include "trireme/ps/coordinator.h"
#include "trireme/wire/node_loop.h"

namespace trireme::etcd {

struct CandidateOptions {
  wire::Address store;         ///< "etcd://HOST:PORT,HOST:PORT/PREFIX"
  wire::NodeLoopOptions loop;  ///< it listens at least at one address; its folder and role are not used
  wire::Address address = {};  ///< where members find this process; empty: the first at which it listens
  ps::CoordinatorOptions coordinator = {};
  double lease_s =
      5;  ///< a leader that died without a word is followed that much later; whole seconds, 2 or more
};

/// Until `stop`, from the calling thread. What happens is told by loop.report: who leads, that etcd does not
/// answer (it goes on trying). Throws InvalidArgument for options that cannot work, CommError where it cannot
/// listen, and DataError when what etcd has is damaged.
void serve_with_etcd(CandidateOptions options, std::stop_token stop);

}  // namespace trireme::etcd
