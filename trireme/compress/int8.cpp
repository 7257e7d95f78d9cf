// int8: blocks of 512 values share one scale (block-wise absmax): the largest finite magnitude becomes 127.
// Stochastic rounding keeps the expectation equal to the value; the other mode rounds to nearest. A
// non-finite value is decoded as NaN. Bytes:
//
//   f32 scales[ceil(n / 512)] | i8 values[n], -128: NaN

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>

#include "trireme/base/random.h"
#include "trireme/compress/internal/codecs.h"

namespace trireme::compress {
namespace {

constexpr std::size_t kBlock = 512;
constexpr int kGreatest = 127;
constexpr std::int8_t kNaN = -128;
constexpr std::uint32_t kInfinite = 0x7f800000, kQuietNaN = 0x7fc00000;

/// All bits set or none: a branch here would prevent vectorization.
TRIREME_INLINE std::uint32_t finite_mask(float value) { return magnitude(value) < kInfinite ? ~0U : 0U; }

/// Bits of the largest finite magnitude. The bit patterns of magnitudes have the order of the magnitudes.
TRIREME_INLINE std::uint32_t greatest_finite(const float* values, std::size_t count) {
  std::uint32_t greatest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bits = magnitude(values[i]) & finite_mask(values[i]);
    greatest = bits > greatest ? bits : greatest;
  }
  return greatest;
}

/// Neither the inverse of the scale nor 127 times the scale is infinite.
TRIREME_INLINE float scale_of(std::uint32_t greatest_bits) {
  float scale = std::max(std::bit_cast<float>(greatest_bits) / kGreatest, FLT_MIN);
  while (scale * kGreatest > FLT_MAX) scale = std::nextafterf(scale, 0);
  return scale;
}

enum class Rounding { kByChance, kNearest };

template <Rounding rounding>
TRIREME_INLINE void quantise(const float* from, std::int8_t* to, std::size_t count, float scale,
                             std::uint32_t seed) {
  // A float between 1 and 255 has at least 16 binary places after the point. The drawn number has 16, so the
  // sum is exact.
  constexpr float kShift = 128, kPlace = 0x1p-16F;
  const float inverse = 1 / scale;
  TRIREME_NO_CARRIED_DEPENDENCE
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t finite = finite_mask(from[i]);
    const float value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(from[i]) & finite);
    const float scaled = value * inverse + kShift;
    const std::uint32_t bits = hashed(seed + static_cast<std::uint32_t>(i) * 0x9e3779b9U) >> 16;
    const float drawn =
        rounding == Rounding::kNearest ? 0.5F : static_cast<float>(static_cast<std::int32_t>(bits)) * kPlace;
    int step = static_cast<int>(scaled + drawn) - static_cast<int>(kShift);
    step = step > kGreatest ? kGreatest : step;
    step = step < -kGreatest ? -kGreatest : step;
    to[i] = static_cast<std::int8_t>((step & static_cast<int>(finite)) | (kNaN & ~static_cast<int>(finite)));
  }
}

template <bool adds>
TRIREME_INLINE void restore(const std::int8_t* from, float* to, std::size_t count, float scale) {
  TRIREME_NO_CARRIED_DEPENDENCE
  for (std::size_t i = 0; i < count; ++i) {
    const float scaled = static_cast<float>(from[i]) * scale;
    const std::uint32_t nan = from[i] == kNaN ? kQuietNaN : 0;
    const float value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | nan);
    to[i] = adds ? to[i] + value : value;
  }
}

std::size_t scale_bytes(std::size_t num_values) { return (num_values + kBlock - 1) / kBlock * sizeof(float); }

template <Rounding rounding>
class Int8Codec final : public Codec {
 public:
  bool encodes_sums() const override { return true; }
  std::size_t most_bytes(std::size_t num_values, const Options&) const override {
    return scale_bytes(num_values) + num_values;
  }
  std::size_t encode(std::span<const float> values, const Options& options,
                     std::span<std::byte> bytes) const override {
    auto* scales = numbers_at<float>(bytes.data());
    auto* steps = reinterpret_cast<std::int8_t*>(bytes.data() + scale_bytes(values.size()));
    run_vectorised([&]() TRIREME_INLINE_BODY {
      Random random(options.seed);
      for (std::size_t first = 0; first < values.size(); first += kBlock, ++scales) {
        const std::size_t count = std::min(kBlock, values.size() - first);
        const float scale = scale_of(greatest_finite(values.data() + first, count));
        scales->value = scale;
        quantise<rounding>(values.data() + first, steps + first, count, scale,
                           static_cast<std::uint32_t>(random.bits()));
      }
    });
    return most_bytes(values.size(), options);
  }
  bool fits(std::span<const std::byte> bytes, std::size_t num_values) const override {
    return bytes.size() >= num_values && bytes.size() - num_values == scale_bytes(num_values);
  }
  void decode(std::span<const std::byte> bytes, std::span<float> values) const override {
    restore_all<false>(bytes, values);
  }
  void add(std::span<const std::byte> bytes, std::span<float> values) const override {
    restore_all<true>(bytes, values);
  }

 private:
  template <bool adds>
  static void restore_all(std::span<const std::byte> bytes, std::span<float> values) {
    const auto* scales = numbers_at<float>(bytes.data());
    const auto* steps = reinterpret_cast<const std::int8_t*>(bytes.data() + scale_bytes(values.size()));
    run_vectorised([&]() TRIREME_INLINE_BODY {
      for (std::size_t first = 0; first < values.size(); first += kBlock, ++scales)
        restore<adds>(steps + first, values.data() + first, std::min(kBlock, values.size() - first),
                      scales->value);
    });
  }
};

}  // namespace

const Codec& int8_codec() {
  static const Int8Codec<Rounding::kByChance> kCodec;
  return kCodec;
}
const Codec& nearest_int8_codec() {
  static const Int8Codec<Rounding::kNearest> kCodec;
  return kCodec;
}

}  // namespace trireme::compress
