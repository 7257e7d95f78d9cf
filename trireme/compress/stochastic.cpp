// qsgd (Alistarh et al., NeurIPS 2017, section 3.1): a sign and one of 8 levels per value. Stochastic
// rounding keeps the expectation equal to the value. Blocks of 512 share a scale, their Euclidean norm, which
// is the highest level. A block with a non-finite value is decoded as NaN. Bytes:
//
//   f32 scales[ceil(n / 512)] | codes[n], 4 bits each from the lowest on: level, and the sign above it

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "trireme/base/random.h"
#include "trireme/compress/internal/codecs.h"

namespace trireme::compress {
namespace {

constexpr std::size_t kBlock = 512, kLanes = 16;
constexpr std::uint32_t kBits = 4, kTop = (1U << (kBits - 1)) - 1, kPerByte = 8 / kBits;
constexpr std::uint32_t kQuietNaN = 0x7fc00000;

std::size_t scale_bytes(std::size_t num_values) { return (num_values + kBlock - 1) / kBlock * sizeof(float); }

/// Adds in a fixed order of lanes, so that vectors of any width give the same bits. The values are divided by
/// the largest first, so that the squares of very large or very small values are not lost.
TRIREME_INLINE float norm_of(const float* values, std::size_t count, float greatest) {
  if (!(greatest > 0) || !std::isfinite(greatest)) return greatest;
  std::array<float, kLanes> sums{};
  const std::size_t whole = count / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const float share = values[i + lane] / greatest;
      sums[lane] += share * share;
    }
  }
  for (std::size_t i = whole; i < count; ++i) {
    const float share = values[i] / greatest;
    sums[i - whole] += share * share;
  }
  float sum = 0;
  for (const float each : sums) sum += each;
  return greatest * std::sqrt(sum);
}

/// NaN if any value is NaN.
TRIREME_INLINE float greatest_of(const float* values, std::size_t count) {
  std::uint32_t greatest = 0;
  for (std::size_t i = 0; i < count; ++i) greatest = std::max(greatest, magnitude(values[i]));
  return std::bit_cast<float>(greatest);
}

TRIREME_INLINE void quantise(const float* values, std::uint8_t* codes, std::size_t count, float scale,
                             std::uint32_t seed) {
  // A value that equals the scale gets the highest level, however the quotient is rounded.
  const float per_level = scale > 0 ? static_cast<float>(kTop) / scale : 0;
  TRIREME_NO_CARRIED_DEPENDENCE
  for (std::size_t i = 0; i < count; ++i) {
    const float level = std::bit_cast<float>(magnitude(values[i])) * per_level;
    const std::uint32_t drawn = hashed(seed + static_cast<std::uint32_t>(i) * 0x9e3779b9U) >> 8;
    const auto step =
        static_cast<std::int32_t>(level + static_cast<float>(static_cast<std::int32_t>(drawn)) * 0x1p-24F);
    const std::uint32_t sign = std::bit_cast<std::uint32_t>(values[i]) >> 31;
    codes[i] = static_cast<std::uint8_t>(std::min<std::uint32_t>(static_cast<std::uint32_t>(step), kTop) |
                                         sign << (kBits - 1));
  }
}

enum class Use { kSet, kAdd };

template <Use use>
TRIREME_INLINE void restore(const std::byte* packed, float* values, std::size_t count, float scale) {
  const float of_level = scale / static_cast<float>(kTop);
  TRIREME_NO_CARRIED_DEPENDENCE
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t code = static_cast<std::uint32_t>(packed[i / kPerByte]) >> (i % kPerByte * kBits);
    const float level = of_level * static_cast<float>(static_cast<std::int32_t>(code & kTop));
    const float value =
        std::bit_cast<float>(std::bit_cast<std::uint32_t>(level) | ((code >> (kBits - 1)) & 1U) << 31);
    values[i] = use == Use::kSet ? value : values[i] + value;
  }
}

class QsgdCodec final : public Codec {
 public:
  std::size_t most_bytes(std::size_t num_values, const Options&) const override {
    return scale_bytes(num_values) + (num_values + kPerByte - 1) / kPerByte;
  }
  std::size_t encode(std::span<const float> values, const Options& options,
                     std::span<std::byte> bytes) const override {
    auto* scales = numbers_at<float>(bytes.data());
    std::byte* packed = bytes.data() + scale_bytes(values.size());
    run_vectorised([&]() TRIREME_INLINE_BODY {
      Random random(options.seed);
      std::array<std::uint8_t, kBlock> codes{};
      for (std::size_t first = 0; first < values.size(); first += kBlock, ++scales) {
        const std::size_t count = std::min(kBlock, values.size() - first);
        const float* from = values.data() + first;
        const float scale = norm_of(from, count, greatest_of(from, count));
        const bool is_finite = std::isfinite(scale);
        scales->value = is_finite ? scale : std::bit_cast<float>(kQuietNaN);
        codes = {};
        const auto seed = static_cast<std::uint32_t>(random.bits());
        if (is_finite) quantise(from, codes.data(), count, scale, seed);
        for (std::size_t i = 0; i < (count + kPerByte - 1) / kPerByte; ++i) {
          std::uint32_t byte = 0;
          for (std::uint32_t k = 0; k < kPerByte; ++k)
            byte |= static_cast<std::uint32_t>(codes[i * kPerByte + k]) << (k * kBits);
          packed[first / kPerByte + i] = static_cast<std::byte>(byte);
        }
      }
    });
    return most_bytes(values.size(), options);
  }
  bool fits(std::span<const std::byte> bytes, std::size_t num_values) const override {
    return bytes.size() == most_bytes(num_values, {});
  }
  void decode(std::span<const std::byte> bytes, std::span<float> values) const override {
    restore_all<Use::kSet>(bytes, values);
  }
  void add(std::span<const std::byte> bytes, std::span<float> values) const override {
    restore_all<Use::kAdd>(bytes, values);
  }

 private:
  template <Use use>
  static void restore_all(std::span<const std::byte> bytes, std::span<float> values) {
    const auto* scales = numbers_at<float>(bytes.data());
    const std::byte* packed = bytes.data() + scale_bytes(values.size());
    run_vectorised([&]() TRIREME_INLINE_BODY {
      for (std::size_t first = 0; first < values.size(); first += kBlock, ++scales)
        restore<use>(packed + first / kPerByte, values.data() + first,
                     std::min(kBlock, values.size() - first), scales->value);
    });
  }
};

}  // namespace

const Codec& qsgd_codec() {
  static const QsgdCodec kCodec;
  return kCodec;
}

}  // namespace trireme::compress
