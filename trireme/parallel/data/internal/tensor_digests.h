#pragma once
// Digests of tensors, by which values are compared without a copy of them: XXH3 of each tensor in the host's
// memory; on a device the sum of its words, so that one number for each tensor is read back. Functions without
// state.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trireme::parallel {

/// XXH3 of that many bytes.
std::int64_t digest_of(const void* bytes, std::size_t count);

/// One for each tensor, of its elements in their order. Waits for a device once. Cost: one read of all values.
std::vector<std::int64_t> digests_of(const std::vector<at::Tensor>& tensors);

}  // namespace trireme::parallel
