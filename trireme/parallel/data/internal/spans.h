#pragma once
// The memory of flat tensors of the CPU, for loops over elements.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>

namespace trireme::parallel {

/// Of a contiguous tensor of f32.
inline std::span<float> span_of(const at::Tensor& tensor) {
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}
/// Of a contiguous tensor of u8.
inline std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return std::as_writable_bytes(std::span(tensor.data_ptr<std::uint8_t>(), tensor.nbytes()));
}

}  // namespace trireme::parallel
