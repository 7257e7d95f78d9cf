#pragma once
// Large tensors of the CPU in blocks of their own (base/large_blocks.h). Thread-safe.

namespace trireme::comm {

/// Puts an allocator in front of libtorch's: tensors of LargeBlocks::kMinBytes and more are in LargeBlocks,
/// smaller ones stay with libtorch's. Permanent; a second call has no effect. Call it before allocators that
/// observe allocations.
void keep_tensor_blocks();

}  // namespace trireme::comm
