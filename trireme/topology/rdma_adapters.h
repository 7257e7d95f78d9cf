#pragma once
// RDMA adapters (InfiniBand, RoCE) of this host with a link, by the kernel.

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::topology {

/// "mlx5_0:1": an adapter and its port, in ascending order; empty: there is none. Adapters that cannot be
/// read are left out.
std::vector<std::string> active_rdma_ports(const std::filesystem::path& system = "/sys/class/infiniband");

}  // namespace trireme::topology
