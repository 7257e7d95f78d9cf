#pragma once
// Large tensors of the CPU in blocks of their own (base/large_blocks.h). Thread-safe.

namespace trireme::comm {

/// Puts an allocator in front of libtorch's: tensors of LargeBlocks::kMinBytes and more lie in LargeBlocks,
/// smaller ones where they did. For good; again: nothing. It comes before allocators that watch what is given
/// out.
void keep_tensor_blocks();

}  // namespace trireme::comm
