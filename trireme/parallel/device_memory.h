#pragma once
// Use of a device's memory by tensors, by kind, as count_as() (counted_memory.h) names them. The total is
// that of libtorch's allocator for the device, where it keeps statistics (c10::DeviceAllocator: CUDA's does).
// Memory of the host is in the MemoryLedger, and not here. A process has one, for all of its devices.
// Thread-safe. Cost: a lock and a look-up for each name; now() visits each named memory.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "trireme/base/memory_ledger.h"

namespace trireme::parallel {

class DeviceMemory {
 public:
  /// The one of this process. It is never destroyed, so that tensors may be named while the process ends.
  static DeviceMemory& of_process();

  /// The memory that a tensor of a device is a part of is of that kind, until it is freed.
  void name(MemoryKind kind, const at::Tensor& tensor);

  /// Allocated bytes on a device. Activations are the unnamed rest: 0 where the allocator has no total.
  MemoryUse now(c10::Device device) const;
  /// The same when the allocator's total was largest, since reset_peak(): kinds with a name as they are now,
  /// and the rest as activations. Without statistics: now().
  MemoryUse at_peak(c10::Device device) const;
  void reset_peak(c10::Device device);

 private:
  struct Named {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    MemoryKind kind;
  };
  MemoryUse named_on(c10::Device device) const;
  void forget_freed();

  mutable std::mutex mutex_;
  std::unordered_map<const c10::StorageImpl*, Named> named_;
  std::size_t forget_at_ = 64;  ///< of how many entries the freed ones are looked for
};

}  // namespace trireme::parallel
