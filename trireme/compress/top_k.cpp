// top-k: the values of largest magnitude, uncompressed, with their places; the others are dropped. The
// threshold is estimated from a sample, so fewer values than the limit may be sent, and never more.

#include <algorithm>
#include <functional>

#include "trireme/base/random.h"
#include "trireme/compress/internal/codecs.h"
#include "trireme/compress/internal/pairs.h"

namespace trireme::compress {
namespace {

constexpr std::size_t kSample = 4096;

/// The threshold that `count` of `magnitudes` reach. At least 1, so that zeros are not sent.
std::uint32_t threshold_for(std::vector<std::uint32_t> magnitudes, std::size_t count) {
  const std::size_t last = std::clamp<std::size_t>(count, 1, magnitudes.size()) - 1;
  const auto nth = magnitudes.begin() + static_cast<std::ptrdiff_t>(last);
  std::nth_element(magnitudes.begin(), nth, magnitudes.end(), std::greater<>());
  return std::max<std::uint32_t>(*nth, 1);
}

std::uint32_t exact_threshold(std::span<const float> values, std::size_t count) {
  std::vector<std::uint32_t> magnitudes(values.size());
  std::ranges::transform(values, magnitudes.begin(), [](float value) { return magnitude(value); });
  return threshold_for(std::move(magnitudes), count);
}

/// Aims at one and a half times `count`, because a sample can miss some; the caller removes the surplus.
std::uint32_t sampled_threshold(std::span<const float> values, std::size_t count, std::uint64_t seed) {
  Random random(seed);
  const std::size_t stride = values.size() / kSample;
  std::vector<std::uint32_t> magnitudes(kSample);
  for (std::size_t i = 0; i < kSample; ++i)
    magnitudes[i] = magnitude(values[i * stride + random.below(stride)]);
  return threshold_for(std::move(magnitudes), (count * kSample + count * kSample / 2) / values.size());
}

/// At most `count` places, in ascending order.
Places greatest(std::span<const float> values, std::size_t count, std::uint64_t seed) {
  Places places;
  if (values.size() > kSample)
    places = places_from(values, sampled_threshold(values, count, seed), 2 * count);
  if (places.size() < (count + 1) / 2) places = places_from(values, exact_threshold(values, count), count);
  if (places.size() <= count) return places;
  const auto end = places.begin() + static_cast<std::ptrdiff_t>(count);
  std::nth_element(places.begin(), end, places.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair(magnitude(values[b]), a) < std::pair(magnitude(values[a]), b);
  });
  places.erase(end, places.end());
  std::ranges::sort(places);
  return places;
}

class TopKCodec final : public PairsCodec {
 public:
  std::size_t most_bytes(std::size_t num_values, const Options& options) const override {
    return bytes_for(num_values, max_named(num_values, options));
  }

 private:
  Places choose(std::span<const float> values, const Options& options) const override {
    return greatest(values, max_named(values.size(), options), options.seed);
  }
};

}  // namespace

const Codec& top_k_codec() {
  static const TopKCodec kCodec;
  return kCodec;
}

}  // namespace trireme::compress
