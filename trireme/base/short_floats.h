#pragma once
// bf16 and f16 (IEEE 754 binary16) as bits, and their conversions from and to f32: to nearest even, too large
// values to infinity, NaN to NaN. Branch-free, for loops over arrays (kernels.h). Pure functions.

#include <bit>
#include <cstdint>

#include "trireme/base/kernels.h"

namespace trireme {

struct Bf16 {
  std::uint16_t bits;
};
/// The bits of an IEEE 754 binary16: 1 of sign, 5 of exponent, 10 of mantissa.
struct F16 {
  std::uint16_t bits;
};

TRIREME_INLINE float widen(Bf16 value) { return std::bit_cast<float>(std::uint32_t{value.bits} << 16); }

/// Exponent and mantissa move to their places in f32, a multiplication sets the bias right and makes
/// subnormals normal; infinities and NaN get the exponent of all ones.
TRIREME_INLINE float widen(F16 value) {
  const std::uint32_t magnitude = (value.bits & 0x7fffU) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * std::bit_cast<float>(0x77800000U);  // 2^112
  std::uint32_t bits = std::bit_cast<std::uint32_t>(scaled);
  bits |= magnitude >= 0x0f800000U ? 0x7f800000U : 0U;
  return std::bit_cast<float>(bits | (value.bits & 0x8000U) << 16);
}

TRIREME_INLINE void narrow(float value, Bf16& to) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
  to.bits = static_cast<std::uint16_t>(is_nan ? (bits >> 16) | 0x40U : rounded);
}

/// All ones where it holds. Masks, and no choices (x ? a : b): of those GCC 12 makes branches where one side
/// is a float operation, and computes one element at a time.
TRIREME_INLINE std::uint32_t mask_of(bool holds) { return 0U - static_cast<std::uint32_t>(holds); }
TRIREME_INLINE std::uint32_t chosen(std::uint32_t mask, std::uint32_t then, std::uint32_t otherwise) {
  return (then & mask) | (otherwise & ~mask);
}

/// Normal results by integer rounding; subnormal ones by letting the f32 adder round at the place of f16's
/// last bit.
TRIREME_INLINE void narrow(float value, F16& to) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  const std::uint32_t normal = (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U;
  std::uint32_t result = chosen(mask_of(magnitude < 0x38800000U), subnormal, normal);
  result = chosen(mask_of(magnitude >= 0x477ff000U), 0x7c00U, result);
  result = chosen(mask_of(magnitude > 0x7f800000U), 0x7e00U, result);
  to.bits = static_cast<std::uint16_t>(result | (bits >> 16 & 0x8000U));
}

}  // namespace trireme
