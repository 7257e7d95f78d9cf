#pragma once
// What this process may use of its host. All functions read the kernel's current answer and are thread-safe.

#include <cstdint>
#include <string>

namespace trireme {

/// Cores this process may run on: its affinity mask, further limited by the cgroup's CPU quota (rounded up).
int available_cores();

/// Largest resident memory this process ever had, in bytes.
std::uint64_t peak_rss_bytes();

/// Text that two processes share exactly when they can share memory and signals: boot id and PID namespace.
/// The environment variable TRIREME_HOST_ID overrides it, to play several hosts on one.
std::string host_id();

}  // namespace trireme
