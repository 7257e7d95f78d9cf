#include "trireme/train/estimate/process_memory.h"

#include <malloc.h>

#include <algorithm>

#include "trireme/base/available_memory.h"
#include "trireme/base/large_blocks.h"

namespace trireme::train {

std::int64_t measured_base_bytes() {
  LargeBlocks::of_process().release();
  ::malloc_trim(0);
  return static_cast<std::int64_t>(anonymous_memory());
}

std::int64_t process_bytes(const ForecastOfRank& rank, std::int64_t base_bytes) {
  const std::int64_t tensors = std::max(rank.at_peak.total(), rank.first_step_bytes);
  const std::int64_t own = tensors - rank.shared_bytes;
  return tensors + own / 8 + base_bytes + kRunBytes;
}

}  // namespace trireme::train
