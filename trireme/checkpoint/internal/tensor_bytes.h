#pragma once
// A tensor as its bytes. Stateless.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>

namespace trireme::checkpoint {

/// Of a row-major tensor of the CPU, which outlives them.
inline std::span<const std::byte> tensor_bytes(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

}  // namespace trireme::checkpoint
