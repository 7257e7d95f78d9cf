#pragma once
// Names of the algorithms of an all-reduce between hosts, and of its networks: ContextOptions::all_reduce and
// ::network, comm.all_reduce and comm.network.

#include <string>
#include <vector>

namespace trireme::comm {

inline constexpr const char* kAllReduceAuto = "auto";  ///< the fastest by measurement, by size
inline constexpr const char* kAllReduceByGloo = "gloo";

/// These two, and the algorithms of trireme/topology/.
std::vector<std::string> all_reduce_names();
/// Throws InvalidArgument that suggests the nearest.
void check_all_reduce(const std::string& name);

inline constexpr const char* kNetworkAuto =
    "auto";  ///< UCX over RDMA adapters where that is faster, else TCP

/// "tcp"; "ucx", the best transport that UCX finds: RDMA, shared memory or TCP; and "auto".
std::vector<std::string> network_names();
/// Throws InvalidArgument that suggests the nearest, or has the reason why it cannot be used here.
void check_network(const std::string& name);

}  // namespace trireme::comm
