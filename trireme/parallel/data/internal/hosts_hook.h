#pragma once
// A compression between hosts only: gradients are added up uncompressed inside each host, the sums of the
// hosts go through another hook, and each host distributes the result. Some first ranks of a host, as many as
// every host has, do that for some of the parameters, the same ones on all hosts. So the other hook's state
// is a host's, and does not depend on the number of its ranks. One thread.

#include <memory>

#include "trireme/parallel/data/comm_hook.h"

namespace trireme::parallel {

/// When gradients go by hosts.
enum class CompressionScope {
  kAuto,   ///< where there are several hosts, one of them with several ranks
  kAll,    ///< never: each rank compresses
  kHosts,  ///< always: the sum of ranks on one host is compressed, without a transfer
};
/// "auto", "all", "hosts". Throws InvalidArgument for an unknown name, with the nearest known one.
CompressionScope compression_scope_of(const std::string& name);

/// `compression` is one of compressing_hook.h, and has seen no parameter.
std::shared_ptr<CommHook> make_hosts_hook(std::shared_ptr<CommHook> compression, CompressionScope scope);

}  // namespace trireme::parallel
