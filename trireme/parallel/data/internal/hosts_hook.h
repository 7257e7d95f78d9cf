#pragma once
// A compression between hosts alone: gradients are added up inside each host as they are, the sums of the
// hosts go through another hook, and each host hands round what came. Each of the first ranks of a host, as
// many as every host has, does that for some of the parameters, the same ones on all hosts, so that what the
// other hook keeps is a host's, and does not depend on how many ranks a host has. One thread.

#include <memory>

#include "trireme/parallel/data/comm_hook.h"

namespace trireme::parallel {

/// When gradients go by hosts.
enum class CompressionScope {
  kAuto,   ///< where there are several hosts, one of them with several ranks
  kAll,    ///< never: each rank compresses
  kHosts,  ///< always: of ranks on one host their sum is compressed, though nobody is sent to
};
/// "auto", "all", "hosts". Throws InvalidArgument for an unknown name, with the nearest known one.
CompressionScope compression_scope_of(const std::string& name);

/// `compression` is one of compressing_hook.h, and has seen no parameter.
std::shared_ptr<CommHook> make_hosts_hook(std::shared_ptr<CommHook> compression, CompressionScope scope);

}  // namespace trireme::parallel
