#pragma once
// A tensor as its bytes. Stateless.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>

namespace trireme::checkpoint {

/// Of a row-major tensor of the CPU, which outlives them.
inline std::span<const std::byte> tensor_bytes(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

/// The first element of a bool tensor that is neither 0 nor 1. Reading it as a bool is undefined behaviour.
inline std::optional<std::ptrdiff_t> first_not_bool(std::span<const std::byte> elements) {
  const auto bad = std::ranges::find_if(elements, [](std::byte byte) { return byte > std::byte{1}; });
  if (bad == elements.end()) return std::nullopt;
  return bad - elements.begin();
}

}  // namespace trireme::checkpoint
