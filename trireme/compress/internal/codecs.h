#pragma once
// The codecs of the table in codec.cpp, each in a source of its own, and access to unaligned numbers in
// bytes.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "trireme/base/kernels.h"
#include "trireme/compress/codec.h"

namespace trireme::compress {

const Codec& fp16_codec();
const Codec& bf16_codec();
const Codec& int8_codec();
const Codec& nearest_int8_codec();
const Codec& qsgd_codec();
const Codec& sign_codec();
const Codec& top_k_codec();

/// At least one.
inline std::size_t max_named(std::size_t num_values, const Codec::Options& options) {
  const auto share = static_cast<std::size_t>(static_cast<double>(num_values) * options.fraction);
  return std::max<std::size_t>(share, 1);
}

/// A number in the order of magnitudes: zero is 0, then finite ones, infinity, NaN.
TRIREME_INLINE std::uint32_t magnitude(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffffU;
}

/// Uniform bits of a number (Wellons, "Prospecting for hash functions", lowbias32).
TRIREME_INLINE std::uint32_t hashed(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352dU;
  x = (x ^ (x >> 15)) * 0x846ca68bU;
  return x ^ (x >> 16);
}

/// A number in place, at any alignment.
template <class Number>
struct [[gnu::packed, gnu::may_alias]] Unaligned {
  Number value;
};
template <class Number>
const Unaligned<Number>* numbers_at(const std::byte* bytes) {
  return reinterpret_cast<const Unaligned<Number>*>(bytes);
}
template <class Number>
Unaligned<Number>* numbers_at(std::byte* bytes) {
  return reinterpret_cast<Unaligned<Number>*>(bytes);
}

}  // namespace trireme::compress
