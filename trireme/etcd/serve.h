#pragma once
// A coordinator that is one of several: its memory is in etcd, and at any time one of the processes that call
// this leads. The others wait, turn away who comes, and take over when the leader is gone.

#include "trireme/ps/serve.h"

namespace trireme::etcd {

struct CandidateOptions {
  wire::Address store;         ///< "etcd://HOST:PORT,HOST:PORT/PREFIX"
  wire::Address address = {};  ///< where members find this process; empty: the first at which it listens
  ps::CoordinatorOptions coordinator = {};
  double lease_s = 5;  ///< who died without a word is followed that much later; whole seconds, 2 or more
};

/// Returns when it is asked to stop, and then another takes over at once. serve.loop.folder is not used; what
/// happens is told by serve.loop.report: who leads, and that etcd does not answer, where it continues trying.
/// Throws InvalidArgument for options that cannot work, CommError for an address that is taken, and DataError
/// when what etcd has is damaged.
void serve_with_etcd(const CandidateOptions& options, ps::ServeOptions serve);

}  // namespace trireme::etcd
