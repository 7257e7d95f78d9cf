#pragma once
// How much memory this process has, and how much it can still take. Beyond that the kernel does not refuse:
// it kills.

#include <cstdint>
#include <filesystem>
#include <optional>

namespace trireme {

struct AvailableMemory {
  std::uint64_t bytes = 0;                         ///< the most there is when nothing is known
  std::optional<std::uint64_t> group_limit_bytes;  ///< the smallest of the control groups above this process
};

/// What the host and the control groups of this process have left, at this moment. File pages that the kernel
/// gives back when memory is asked for (the page cache, but neither shared memory nor what is still to be
/// written) are free. Reads proc/ and sys/fs/cgroup/ under `root`; what cannot be read sets no limit.
AvailableMemory available_memory(const std::filesystem::path& root = "/");

/// Bytes of anonymous memory that this process has in RAM: heap, private mappings and stacks, without shared
/// memory and pages of files. 0 where proc/ under `root` does not tell.
std::uint64_t anonymous_memory(const std::filesystem::path& root = "/");

}  // namespace trireme
