#pragma once
// Message bodies for tests, and their comparison.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "trireme/wire/message.h"

namespace trireme::wire {

/// Equal for equal seeds.
inline Buffer body_of(std::size_t bytes, std::uint64_t seed = 1) {
  std::vector<std::byte> result(bytes);
  std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (std::size_t i = 0; i < bytes; ++i) {
    if (i % 8 == 0) state = state * 6364136223846793005u + 1442695040888963407u;
    result[i] = static_cast<std::byte>(state >> (8 * (i % 8)));
  }
  return Buffer::of(std::move(result));
}

inline std::vector<std::byte> head_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

inline bool same_bytes(const Buffer& one, const Buffer& other) {
  return std::ranges::equal(one.bytes(), other.bytes());
}

}  // namespace trireme::wire
