#pragma once
// The codecs of the table in codec.cpp, each in a source of its own, and numbers that stand in bytes of
// messages, where nothing is aligned.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "trireme/base/kernels.h"
#include "trireme/ps/codec.h"

namespace trireme::ps {

const Codec& fp16_codec();
const Codec& bf16_codec();
const Codec& int8_codec();
const Codec& top_k_codec();

/// A number in the order of magnitudes: zero is 0, then what is finite, infinity, NaN.
TRIREME_INLINE std::uint32_t magnitude(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffffU;
}

/// A number where it lies, wherever that is.
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

/// Bytes to be written, all of them, and then handed on.
struct NewBytes {
  explicit NewBytes(std::size_t count)
      : owner(std::make_shared_for_overwrite<std::byte[]>(count)), bytes(owner.get(), count) {}
  wire::Buffer buffer() const { return wire::Buffer(owner, bytes); }

  std::shared_ptr<std::byte[]> owner;
  std::span<std::byte> bytes;
};

}  // namespace trireme::ps
