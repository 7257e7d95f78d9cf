#pragma once
// Networks of an Exchange: ContextOptions::network, comm.network.

#include <string>
#include <vector>

namespace trireme::topology {

inline constexpr const char* kNetworkTcp = "tcp";
inline constexpr const char* kNetworkUcx = "ucx";  ///< the best transport of UCX: RDMA, shared memory, TCP

/// A network, and whether it can be used here.
struct NetworkInfo {
  std::string name;
  std::string summary;
  std::string unavailable_because;  ///< empty when it can be used here
};

/// Of all.
std::vector<std::string> network_names();
/// Of all. Loads their libraries.
std::vector<NetworkInfo> network_infos();
/// Empty when it can be used here, else the reason. Loads its library. Throws InvalidArgument that suggests
/// the nearest name.
std::string network_unavailable_because(const std::string& name);
}  // namespace trireme::topology
