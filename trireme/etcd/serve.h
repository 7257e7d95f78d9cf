#pragma once
// A coordinator that is one of several: its state is in etcd, and at any time one of the processes that call
// this leads. The others wait, reject connections, and take over when the leader is gone.

#include "trireme/ps/serve.h"

namespace trireme::etcd {

struct CandidateOptions {
  wire::Address store;         ///< "etcd://HOST:PORT,HOST:PORT/PREFIX"
  wire::Address address = {};  ///< where members find this process; empty: the first at which it listens
  ps::CoordinatorOptions coordinator = {};
  double lease_s = 5;  ///< time from a leader's death to its replacement; whole seconds, 2 or more
};

/// Returns when it is asked to stop, and then another takes over at once. serve.loop.folder is not used.
/// serve.loop.report gets the changes: the present leader, and that etcd does not answer, where it continues
/// trying. Throws InvalidArgument for invalid options, CommError for an address that is taken, and DataError
/// when the data in etcd are damaged.
void serve_with_etcd(const CandidateOptions& options, ps::ServeOptions serve);

}  // namespace trireme::etcd
