// sign (1-bit quantization): one bit per value. Each block of 4096 has one scale, the mean magnitude, which
// replaces all magnitudes (Seide et al., Interspeech 2014; scaled as in Karimireddy et al., ICML 2019, eq.
// 4). A block with a non-finite value is decoded as NaN. Bytes:
//
//   f32 scales[ceil(n / 4096)] | bits[n], from the lowest bit of each byte; set: negative

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "trireme/compress/internal/codecs.h"

namespace trireme::compress {
namespace {

constexpr std::size_t kBlock = 4096, kLanes = 16, kByte = 8;

std::size_t num_blocks(std::size_t num_values) { return (num_values + kBlock - 1) / kBlock; }
std::size_t bit_bytes(std::size_t num_values) { return (num_values + kByte - 1) / kByte; }

/// Adds in a fixed order of lanes, so that vectors of any width give the same bits.
TRIREME_INLINE float mean_magnitude(const float* values, std::size_t count) {
  std::array<float, kLanes> sums{};
  const std::size_t whole = count / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      sums[lane] += std::bit_cast<float>(magnitude(values[i + lane]));
  }
  for (std::size_t i = whole; i < count; ++i) sums[i - whole] += std::bit_cast<float>(magnitude(values[i]));
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0] / static_cast<float>(count);
}

/// For at most one block. Writes a byte per sign first, then packs eight of them into one byte. Each bit of
/// the factor moves one of them to its place.
TRIREME_INLINE void write_bits(const float* values, std::byte* bits, std::size_t count) {
  constexpr std::uint64_t kGather = 0x0102040810204080;
  std::array<std::uint8_t, kBlock> signs;
  TRIREME_NO_CARRIED_DEPENDENCE
  for (std::size_t i = 0; i < count; ++i)
    signs[i] = static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(values[i]) >> 31);
  for (std::size_t i = count; i % kByte != 0; ++i) signs[i] = 0;
  const auto* eight = numbers_at<std::uint64_t>(reinterpret_cast<const std::byte*>(signs.data()));
  for (std::size_t i = 0; i < bit_bytes(count); ++i)
    bits[i] = static_cast<std::byte>((eight[i].value * kGather) >> 56);
}

enum class Use { kSet, kAdd, kTakeOut };

/// For at most one block. Expands each sign to a byte first, 0x80 or 0, so that the values are computed in
/// vectors.
template <Use use>
TRIREME_INLINE void read_bits(const std::byte* bits, float* values, std::size_t count, float scale) {
  constexpr std::uint64_t kSpread = 0x0101010101010101, kEach = 0x8040201008040201,
                          kCarry = 0x7f7f7f7f7f7f7f7f, kTop = 0x8080808080808080;
  std::array<std::uint8_t, kBlock> signs;
  auto* eight = numbers_at<std::uint64_t>(reinterpret_cast<std::byte*>(signs.data()));
  for (std::size_t i = 0; i < bit_bytes(count); ++i)
    eight[i].value = (((static_cast<std::uint64_t>(bits[i]) * kSpread) & kEach) + kCarry) & kTop;
  const auto scale_bits = std::bit_cast<std::uint32_t>(scale);
  TRIREME_NO_CARRIED_DEPENDENCE
  for (std::size_t i = 0; i < count; ++i) {
    const float value = std::bit_cast<float>(scale_bits | static_cast<std::uint32_t>(signs[i]) << 24);
    values[i] = use == Use::kSet ? value : use == Use::kAdd ? values[i] + value : values[i] - value;
  }
}

class SignCodec final : public Codec {
 public:
  bool leaves_out() const override { return true; }
  bool encodes_sums() const override { return true; }
  std::size_t most_bytes(std::size_t num_values, const Options&) const override {
    return num_blocks(num_values) * sizeof(float) + bit_bytes(num_values);
  }
  std::size_t encode(std::span<const float> values, const Options& options,
                     std::span<std::byte> bytes) const override {
    auto* scales = numbers_at<float>(bytes.data());
    std::byte* bits = bytes.data() + num_blocks(values.size()) * sizeof(float);
    run_vectorised([&]() TRIREME_INLINE_BODY {
      for (std::size_t first = 0; first < values.size(); first += kBlock, ++scales) {
        const std::size_t count = std::min(kBlock, values.size() - first);
        const float scale = mean_magnitude(values.data() + first, count);
        scales->value = std::isfinite(scale) ? scale : std::bit_cast<float>(kQuietNaN);
        write_bits(values.data() + first, bits + first / kByte, count);
      }
    });
    return most_bytes(values.size(), options);
  }
  bool fits(std::span<const std::byte> bytes, std::size_t num_values) const override {
    return bytes.size() == most_bytes(num_values, {});
  }
  void decode(std::span<const std::byte> bytes, std::span<float> values) const override {
    read_all<Use::kSet>(bytes, values);
  }
  void add(std::span<const std::byte> bytes, std::span<float> values) const override {
    read_all<Use::kAdd>(bytes, values);
  }
  void take_out(std::span<const std::byte> bytes, std::span<float> values) const override {
    read_all<Use::kTakeOut>(bytes, values);
  }

 private:
  static constexpr std::uint32_t kQuietNaN = 0x7fc00000;

  template <Use use>
  static void read_all(std::span<const std::byte> bytes, std::span<float> values) {
    const auto* scales = numbers_at<float>(bytes.data());
    const std::byte* bits = bytes.data() + num_blocks(values.size()) * sizeof(float);
    run_vectorised([&]() TRIREME_INLINE_BODY {
      for (std::size_t first = 0; first < values.size(); first += kBlock, ++scales) {
        const std::size_t count = std::min(kBlock, values.size() - first);
        if (use == Use::kTakeOut && !std::isfinite(scales->value)) {
          std::fill_n(values.data() + first, count, 0.0F);  // the whole block was sent as NaN
        } else {
          read_bits<use>(bits + first / kByte, values.data() + first, count, scales->value);
        }
      }
    });
  }
};

}  // namespace

const Codec& sign_codec() {
  static const SignCodec kCodec;
  return kCodec;
}

}  // namespace trireme::compress
