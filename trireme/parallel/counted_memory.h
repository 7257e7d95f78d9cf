#pragma once
// Tells the process's ledger (base/memory_ledger.h) of the memory of tensors: what libtorch's CPU allocator
// gives out from the first call of count_allocations() on. Shared memory for communication tells of itself.
// Memory of other devices is told to DeviceMemory (device_memory.h), where it has a name. Thread-safe.

#include <ATen/core/Tensor.h>

#include "trireme/base/memory_ledger.h"

namespace trireme::parallel {

/// Puts a counting allocator in front of the one that is there, for good; again: nothing.
void count_allocations();

/// The memory that the tensor is a part of is of that kind, on the host or a device. An undefined one, and
/// memory of the host that nobody has told the ledger of, is none.
void count_as(MemoryKind kind, const at::Tensor& tensor);

}  // namespace trireme::parallel
