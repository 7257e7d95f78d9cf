// top-k: the values of the greatest magnitude as they are, and where they stand; the others are left out. The
// threshold comes from a sample, so a push may name fewer than it may, and never more. Bytes, for each 65536
// values:
//
//   u32 count | u16 places[count], rising | f32 values[count]

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "trireme/base/random.h"
#include "trireme/compress/internal/codecs.h"

namespace trireme::compress {
namespace {

constexpr std::size_t kRange = 65536;  // that a place numbers
constexpr std::size_t kSample = 4096;
constexpr std::size_t kPairBytes = sizeof(std::uint16_t) + sizeof(float);

using Places = std::vector<std::uint32_t>;

/// That so many of `magnitudes` reach; at least 1, as there is no need to name zeros.
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

/// For half as many more than `count`: a sample misses some, and what is too much is seen.
std::uint32_t sampled_threshold(std::span<const float> values, std::size_t count, std::uint64_t seed) {
  Random random(seed);
  const std::size_t stride = values.size() / kSample;
  std::vector<std::uint32_t> magnitudes(kSample);
  for (std::size_t i = 0; i < kSample; ++i)
    magnitudes[i] = magnitude(values[i * stride + random.below(stride)]);
  return threshold_for(std::move(magnitudes), (count * kSample + count * kSample / 2) / values.size());
}

TRIREME_INLINE bool reaches(const float* values, std::size_t count, std::uint32_t threshold) {
  std::uint32_t any = 0;
  for (std::size_t i = 0; i < count; ++i) any |= magnitude(values[i]) >= threshold ? 1U : 0U;
  return any != 0;
}

Places places_from(std::span<const float> values, std::uint32_t threshold, std::size_t expected) {
  constexpr std::size_t kBlock = 64;
  Places places(expected + kBlock);
  std::size_t found = 0;
  const auto look_at = [&](std::size_t first, std::size_t count) {
    if (found + kBlock > places.size()) places.resize(2 * places.size());
    for (std::size_t i = first; i < first + count; ++i) {
      places[found] = static_cast<std::uint32_t>(i);
      found += magnitude(values[i]) >= threshold ? 1 : 0;
    }
  };
  const std::size_t whole = values.size() / kBlock * kBlock;
  run_vectorised([&]() TRIREME_INLINE_BODY {
    for (std::size_t first = 0; first < whole; first += kBlock) {
      if (reaches(values.data() + first, kBlock, threshold)) look_at(first, kBlock);
    }
  });
  look_at(whole, values.size() - whole);
  places.resize(found);
  return places;
}

/// At most `count`, rising.
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

/// The pairs of one range, as they lie.
struct Pairs {
  std::size_t count;
  const Unaligned<std::uint16_t>* places;
  const Unaligned<float>* values;
};

/// Takes the pairs of the next range from `left`; of no more than so many values. Whether there are some.
bool take_pairs(std::span<const std::byte>& left, std::size_t most, Pairs& pairs) {
  std::uint32_t count = 0;
  if (left.size() < sizeof count) return false;
  std::memcpy(&count, left.data(), sizeof count);
  left = left.subspan(sizeof count);
  if (count > most || left.size() < count * kPairBytes) return false;
  pairs = {count, numbers_at<std::uint16_t>(left.data()),
           numbers_at<float>(left.data() + count * sizeof(std::uint16_t))};
  left = left.subspan(count * kPairBytes);
  return true;
}

/// Calls `use(place, value)` for all; `bytes` fit.
template <class Use>
void for_each_pair(std::span<const std::byte> bytes, std::size_t num_values, const Use& use) {
  Pairs pairs{};
  for (std::size_t first = 0; first < num_values; first += kRange) {
    take_pairs(bytes, kRange, pairs);
    for (std::size_t i = 0; i < pairs.count; ++i) use(first + pairs.places[i].value, pairs.values[i].value);
  }
}

std::size_t bytes_for(std::size_t num_values, std::size_t num_named) {
  return (num_values + kRange - 1) / kRange * sizeof(std::uint32_t) + num_named * kPairBytes;
}

class TopKCodec final : public Codec {
 public:
  bool leaves_out() const override { return true; }

  std::size_t most_bytes(std::size_t num_values, const Options& options) const override {
    return bytes_for(num_values, most_named(num_values, options));
  }
  std::size_t encode(std::span<const float> values, const Options& options,
                     std::span<std::byte> bytes) const override {
    const Places places = greatest(values, most_named(values.size(), options), options.seed);
    std::byte* to = bytes.data();
    auto begin = places.begin();
    for (std::size_t first = 0; first < values.size(); first += kRange) {
      const auto end = std::lower_bound(begin, places.end(), first + kRange);
      const auto count = static_cast<std::uint32_t>(end - begin);
      std::memcpy(to, &count, sizeof count);
      auto* offset = numbers_at<std::uint16_t>(to + sizeof count);
      auto* value = numbers_at<float>(to + sizeof count + count * sizeof(std::uint16_t));
      for (; begin != end; ++begin, ++offset, ++value) {
        offset->value = static_cast<std::uint16_t>(*begin - first);
        value->value = values[*begin];
      }
      to += sizeof count + count * kPairBytes;
    }
    return bytes_for(values.size(), places.size());
  }

  bool fits(std::span<const std::byte> bytes, std::size_t num_values) const override {
    Pairs pairs{};
    for (std::size_t first = 0; first < num_values; first += kRange) {
      const std::size_t most = std::min(kRange, num_values - first);
      if (!take_pairs(bytes, most, pairs)) return false;
      for (std::size_t i = 0; i < pairs.count; ++i) {
        const std::size_t place = pairs.places[i].value;
        if (place >= most || (i > 0 && place <= pairs.places[i - 1].value)) return false;
      }
    }
    return bytes.empty();
  }
  void decode(std::span<const std::byte> bytes, std::span<float> values) const override {
    std::ranges::fill(values, 0.0F);
    for_each_pair(bytes, values.size(), [&](std::size_t place, float value) { values[place] = value; });
  }
  void add(std::span<const std::byte> bytes, std::span<float> values) const override {
    for_each_pair(bytes, values.size(), [&](std::size_t place, float value) { values[place] += value; });
  }
  void take_out(std::span<const std::byte> bytes, std::span<float> values) const override {
    for_each_pair(bytes, values.size(), [&](std::size_t place, float) { values[place] = 0; });
  }
};

}  // namespace

const Codec& top_k_codec() {
  static const TopKCodec kCodec;
  return kCodec;
}

}  // namespace trireme::compress
