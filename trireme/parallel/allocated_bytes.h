#pragma once
// Counts the bytes of tensors of one kind of device that this thread allocates and frees while the counter
// exists. For example: the memory that a layer keeps for its backward, or the peak of a step. It observes
// libtorch's allocator in the way of the profiler, so both cannot run at the same time. One counter per
// thread, for that thread alone.

#include <c10/core/DeviceType.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>

namespace trireme::parallel {

class AllocatedBytes {
 public:
  explicit AllocatedBytes(c10::DeviceType device = c10::kCPU);
  ~AllocatedBytes();
  AllocatedBytes(const AllocatedBytes&) = delete;
  AllocatedBytes& operator=(const AllocatedBytes&) = delete;

  /// Allocated minus freed bytes since construction. Freeing memory that was allocated before makes it
  /// smaller.
  std::int64_t current() const;
  /// The most that current() has been since it was made or the peak was reset.
  std::int64_t peak() const;
  void reset_peak();

 private:
  class Listener;
  std::shared_ptr<Listener> listener_;
  c10::DebugInfoGuard guard_;
};

}  // namespace trireme::parallel
