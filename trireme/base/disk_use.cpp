#include "trireme/base/disk_use.h"

#include <atomic>

namespace trireme {
namespace {

struct Counters {
  std::atomic<std::uint64_t> read{0}, written{0};
};

std::array<Counters, kNumDiskUses>& counters() {
  static std::array<Counters, kNumDiskUses> of_process;
  return of_process;
}

Counters& counters_of(DiskUse use) { return counters()[static_cast<std::size_t>(use)]; }

}  // namespace

const char* name_of(DiskUse use) {
  switch (use) {
    case DiskUse::kData:
      return "data";
    case DiskUse::kCheckpoints:
      return "checkpoints";
    case DiskUse::kOffload:
      break;
  }
  return "offload";
}

void count_disk_read(DiskUse use, std::uint64_t bytes) {
  counters_of(use).read.fetch_add(bytes, std::memory_order_relaxed);
}

void count_disk_write(DiskUse use, std::uint64_t bytes) {
  counters_of(use).written.fetch_add(bytes, std::memory_order_relaxed);
}

std::array<DiskBytes, kNumDiskUses> disk_bytes() {
  std::array<DiskBytes, kNumDiskUses> bytes;
  for (std::size_t use = 0; use < kNumDiskUses; ++use) {
    bytes[use] = {.read = counters()[use].read.load(std::memory_order_relaxed),
                  .written = counters()[use].written.load(std::memory_order_relaxed)};
  }
  return bytes;
}

}  // namespace trireme
