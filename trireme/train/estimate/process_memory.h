#pragma once
// The memory of a rank's process, for the limit of a container or a control group: its tensors as they are
// forecast, and memory next to them, measured in the process that makes the forecast (docs/adr/0073).

#include <cstdint>

#include "trireme/train/estimate/memory_forecast.h"

namespace trireme::train {

/// Bytes of anonymous memory that this process has when no tensors are left but those of the data: libtorch's
/// tables and relocated code, code and scratch memory of kernels, stacks and heaps of threads, data that were
/// read into memory. Unmaps freed memory that the process keeps first. Call it after measure_memory(), which
/// runs the model's kernels, while the data are open. 0 where proc/ has no value.
std::int64_t measured_base_bytes();

/// Bytes of a rank's process when most is there: tensors, 1/8 of those in its own memory, `base_bytes`, and
/// kRunBytes. Freed blocks that LargeBlocks keeps are half of that eighth, gaps of the heap between smaller
/// tensors the rest. Memory that ranks of a host have in common counts by share: the sum over ranks is that
/// of their container. Pages of files are left out.
std::int64_t process_bytes(const ForecastOfRank& rank, std::int64_t base_bytes);

/// For memory that a run has next to tensors and a measurement has not: messages on their way, ends of shared
/// segments, stacks and heaps of threads that load, send, save and watch.
inline constexpr std::int64_t kRunBytes = 16 << 20;

}  // namespace trireme::train
