#pragma once
// Reports the memory of tensors to the process's ledger (base/memory_ledger.h): allocations of libtorch's CPU
// allocator from the first call of count_allocations() on. Shared memory for communication reports itself.
// Memory of other devices is reported to DeviceMemory (device_memory.h) where it has a name. Thread-safe.

#include <ATen/core/Tensor.h>

#include "trireme/base/memory_ledger.h"

namespace trireme::parallel {

/// Puts a counting allocator in front of the one that is there, for good; again: nothing.
void count_allocations();

/// Labels the memory of the tensor with that kind, on the host or a device. No effect for an undefined
/// tensor, and for memory of the host that the ledger does not have.
void count_as(MemoryKind kind, const at::Tensor& tensor);

}  // namespace trireme::parallel
