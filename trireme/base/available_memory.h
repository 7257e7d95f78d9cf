#pragma once
// Memory of this process, and the memory that it can still take. Beyond that the kernel kills processes.

#include <cstdint>
#include <filesystem>
#include <optional>

namespace trireme {

struct AvailableMemory {
  std::uint64_t bytes = 0;                         ///< the most there is when nothing is known
  std::optional<std::uint64_t> group_limit_bytes;  ///< the smallest of the control groups above this process
};

/// Available memory of the host and the control groups of this process, at this moment. File pages that the
/// kernel can reclaim (the page cache, but neither shared memory nor dirty pages) are free. Reads proc/ and
/// sys/fs/cgroup/ under `root`; a file that cannot be read sets no limit.
AvailableMemory available_memory(const std::filesystem::path& root = "/");

/// Bytes of anonymous memory that this process has in RAM: heap, private mappings and stacks, without shared
/// memory and pages of files. 0 where proc/ under `root` has no value.
std::uint64_t anonymous_memory(const std::filesystem::path& root = "/");

}  // namespace trireme
