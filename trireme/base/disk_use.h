#pragma once
// Bytes that this process has read from files and written to them, by use. Counters of the process, as files
// are the process's: ranks that are threads share them. Thread-safe; counting costs one atomic addition.

#include <array>
#include <cstddef>
#include <cstdint>

namespace trireme {

/// Purpose of reads and writes of files.
enum class DiskUse { kData, kCheckpoints, kOffload };
/// How many uses there are: the length of arrays that a DiskUse indexes.
inline constexpr std::size_t kNumDiskUses = 3;
/// "data", "checkpoints", "offload"
const char* name_of(DiskUse use);

/// Of one use, since the process began.
struct DiskBytes {
  std::uint64_t read = 0, written = 0;
};

/// Adds to the counters of the process.
void count_disk_read(DiskUse use, std::uint64_t bytes);
/// Adds to the counters of the process.
void count_disk_write(DiskUse use, std::uint64_t bytes);
/// By DiskUse.
std::array<DiskBytes, kNumDiskUses> disk_bytes();

}  // namespace trireme
