#include "trireme/compress/internal/pairs.h"

#include <algorithm>
#include <cstring>

#include "trireme/compress/internal/codecs.h"

namespace trireme::compress {
namespace {

constexpr std::size_t kRange = 65536;  // that a place numbers
constexpr std::size_t kPairBytes = sizeof(std::uint16_t) + sizeof(float);

TRIREME_INLINE bool reaches(const float* values, std::size_t count, std::uint32_t threshold) {
  std::uint32_t any = 0;
  for (std::size_t i = 0; i < count; ++i) any |= magnitude(values[i]) >= threshold ? 1U : 0U;
  return any != 0;
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

}  // namespace

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

std::size_t PairsCodec::bytes_for(std::size_t num_values, std::size_t num_named) {
  return (num_values + kRange - 1) / kRange * sizeof(std::uint32_t) + num_named * kPairBytes;
}

std::size_t PairsCodec::encode(std::span<const float> values, const Options& options,
                               std::span<std::byte> bytes) const {
  const Places places = choose(values, options);
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

bool PairsCodec::fits(std::span<const std::byte> bytes, std::size_t num_values) const {
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

void PairsCodec::decode(std::span<const std::byte> bytes, std::span<float> values) const {
  std::ranges::fill(values, 0.0F);
  for_each_pair(bytes, values.size(), [&](std::size_t place, float value) { values[place] = value; });
}

void PairsCodec::add(std::span<const std::byte> bytes, std::span<float> values) const {
  for_each_pair(bytes, values.size(), [&](std::size_t place, float value) { values[place] += value; });
}

void PairsCodec::take_out(std::span<const std::byte> bytes, std::span<float> values) const {
  for_each_pair(bytes, values.size(), [&](std::size_t place, float) { values[place] = 0; });
}

}  // namespace trireme::compress
