#pragma once
// Resources of the host that this process may use. All functions read the kernel's current values and are
// thread-safe.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace trireme {

/// Cores this process may run on: its affinity mask, further limited by the cgroup's CPU quota (rounded up).
int available_cores();
/// The numbers of the cores in its affinity mask, ascending.
std::vector<int> allowed_cores();

/// Share of one of several processes in its host when each core is shared by all that may run on it.
struct CoreShare {
  double cores = 0;       ///< of those it may run on, each divided by the number of its processes
  int num_processes = 1;  ///< that may run on any of them, itself included
};
/// Of process `mine`, by the allowed_cores() of each. Pure.
CoreShare share_of_cores(std::span<const std::vector<int>> allowed, std::size_t mine);

/// Largest resident memory this process ever had, in bytes.
std::uint64_t peak_rss_bytes();

/// The kernel's description of this machine's first processor; empty where it has none.
struct Processor {
  std::string model;         ///< "GenuineIntel 6-207-2 Intel(R) Xeon(R) Processor"
  std::string instructions;  ///< "fpu vme de ... amx_int8"
};
Processor processor();

/// Tells the C library's allocator to keep freed memory for the next allocation instead of giving it back to
/// the kernel. A training step frees and allocates the same tensors again and again. Every page that went
/// back has to be cleared and mapped once more. This took more than a quarter of the time of a small
/// convolutional network's step. Process-wide. False, and nothing changed, when the environment decides
/// already (MALLOC_*, GLIBC_TUNABLES) or another allocator is in use.
bool keep_freed_memory();

/// The host's name; "?" where the kernel has none.
std::string host_name();

/// Text that all processes of a machine share, those in containers too, until it starts again.
std::string boot_id();

/// Text that two processes share exactly when they can share memory and signals: boot id and PID namespace.
/// The environment variable TRIREME_HOST_ID overrides it, to play several hosts on one; TRIREME_SITE,
/// "berlin" or "berlin/rack3", is its prefix, by which topology/levels.h finds hosts that are near each
/// other.
std::string host_id();

}  // namespace trireme
