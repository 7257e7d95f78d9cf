#pragma once
// Counts the bytes of tensors of one kind of device that this thread allocates and gives back while the
// counter lives: what a layer keeps for its backward, what a step needs at its peak. It listens to libtorch's
// allocator the way its profiler does, so both cannot run at the same time. One counter per thread, for that
// thread alone.

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

  /// Allocated minus given back, since it was made; what was there before counts as little when it goes.
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
