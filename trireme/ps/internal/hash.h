#pragma once
// XXH3, 64 bits: placement of keys, and integrity of bytes. The same on every machine. Not for secrets. Pure
// functions.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace trireme::ps {

std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t seed = 0);

inline std::uint64_t hash_text(std::string_view text) { return hash_bytes(std::as_bytes(std::span(text))); }
template <class Number>
std::uint64_t hash_number(Number number, std::uint64_t seed = 0) {
  return hash_bytes(std::as_bytes(std::span(&number, 1)), seed);
}

}  // namespace trireme::ps
