#pragma once
// Tells the process's ledger (base/memory_ledger.h) of the memory of tensors: what libtorch's CPU allocator
// gives out from the first call of count_allocations() on. Shared memory for communication tells of itself.
// Memory of other devices is not seen. Thread-safe.

#include <ATen/core/Tensor.h>

#include "trireme/base/memory_ledger.h"

namespace trireme::parallel {

/// Puts a counting allocator in front of the one that is there, for good; again: nothing.
void count_allocations();

/// The memory that the tensor is a part of is of that kind. An undefined one, and memory that nobody has told
/// the ledger of, is none.
void count_as(MemoryKind kind, const at::Tensor& tensor);

}  // namespace trireme::parallel
