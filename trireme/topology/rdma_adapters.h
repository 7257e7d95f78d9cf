#pragma once
// Which RDMA adapters (InfiniBand, RoCE) of this host have a link, as the kernel says.

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::topology {

/// "mlx5_0:1": an adapter and its port, in ascending order; empty: there is none. What cannot be read is left
/// out.
std::vector<std::string> active_rdma_ports(const std::filesystem::path& system = "/sys/class/infiniband");

}  // namespace trireme::topology
