#pragma once
// The keys of one cluster, below its prefix.

#include <string>

namespace trireme::etcd {

inline std::string leader_key(const std::string& prefix) { return prefix + "/leader"; }

}  // namespace trireme::etcd
