#pragma once
// What a host is made of, as hwloc and the kernel's list of network interfaces say. A value.

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::cli {

struct Cache {
  std::string name;  ///< "L1d", "L2"
  std::uint64_t bytes = 0;
  int count = 0;
  bool operator==(const Cache&) const = default;
};

struct Interface {
  std::string name;
  std::int64_t megabits_per_s = 0;  ///< 0 where the kernel does not know
  bool operator==(const Interface&) const = default;
};

struct HostHardware {
  std::string name;
  int sockets = 0;
  int numa_nodes = 0;
  int cores = 0;
  int threads = 0;                    ///< of the hardware
  int usable = 0;                     ///< cores that this process may use, by affinity and control group
  std::vector<Cache> caches;          ///< the smallest first
  std::vector<Interface> interfaces;  ///< that are up, but loopback
  bool operator==(const HostHardware&) const = default;
};

/// Of this host. Throws InternalError where hwloc finds nothing at all.
HostHardware host_hardware();

}  // namespace trireme::cli
