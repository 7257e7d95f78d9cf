#include "trireme/ps/internal/hash.h"

#ifndef NDEBUG
#define XXH_NO_INLINE_HINTS 1  // gcc does not inline some of them with -Og and sanitizers
#endif
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace trireme::ps {

std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace trireme::ps
