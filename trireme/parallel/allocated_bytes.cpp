#include "trireme/parallel/allocated_bytes.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <unordered_set>

namespace trireme::parallel {

class AllocatedBytes::Listener : public c10::MemoryReportingInfoBase {
 public:
  explicit Listener(c10::DeviceType device) : counted(device) {}
  void reportMemoryUsage(void* memory, std::int64_t bytes, std::size_t, std::size_t,
                         c10::Device device) override {
    if (device.type() != counted) return;
    // libtorch keeps addresses that an earlier counter saw and whose release it missed. Such an address may
    // belong to another block by now.
    if (bytes < 0 && living_.erase(memory) == 0) return;
    if (bytes > 0) living_.insert(memory);
    current += bytes;
    peak = std::max(peak, current);
  }
  bool memoryProfilingEnabled() const override { return true; }

  const c10::DeviceType counted;
  std::int64_t current = 0, peak = 0;

 private:
  std::unordered_set<const void*> living_;  ///< addresses of blocks that were allocated under this listener
};

AllocatedBytes::AllocatedBytes(c10::DeviceType device)
    : listener_(std::make_shared<Listener>(device)), guard_(c10::DebugInfoKind::PROFILER_STATE, listener_) {}

AllocatedBytes::~AllocatedBytes() = default;

std::int64_t AllocatedBytes::current() const { return listener_->current; }
std::int64_t AllocatedBytes::peak() const { return listener_->peak; }
void AllocatedBytes::reset_peak() { listener_->peak = listener_->current; }

}  // namespace trireme::parallel
