#pragma once
// What this process may use of its host. All functions read the kernel's current answer and are thread-safe.

#include <cstdint>
#include <string>

namespace trireme {

/// Cores this process may run on: its affinity mask, further limited by the cgroup's CPU quota (rounded up).
int available_cores();

/// Largest resident memory this process ever had, in bytes.
std::uint64_t peak_rss_bytes();

/// What the kernel says of this machine's first processor; empty where it does not.
struct Processor {
  std::string model;         ///< "GenuineIntel 6-207-2 Intel(R) Xeon(R) Processor"
  std::string instructions;  ///< "fpu vme de ... amx_int8"
};
Processor processor();

/// Tells the C library's allocator to keep freed memory for the next allocation instead of giving it back to
/// the kernel: a training step frees and allocates the same tensors again and again, and every page that went
/// back has to be cleared and mapped once more (more than a quarter of the time of a small convolutional
/// network's step). Process-wide. False, and nothing changed, when the environment decides already (MALLOC_*,
/// GLIBC_TUNABLES) or another allocator is in use.
bool keep_freed_memory();

/// What the host calls itself; "?" where the kernel does not say.
std::string host_name();

/// Text that two processes share exactly when they can share memory and signals: boot id and PID namespace.
/// The environment variable TRIREME_HOST_ID overrides it, to play several hosts on one.
std::string host_id();

}  // namespace trireme
