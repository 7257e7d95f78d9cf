#include "trireme/compress/internal/pairs.h"

#include <algorithm>
#include <cstring>

#include "trireme/compress/internal/codecs.h"

namespace trireme::compress {
namespace {

constexpr std::size_t kRange = 65536;  // a u16 place numbers these
constexpr std::size_t kPairBytes = sizeof(std::uint16_t) + sizeof(float);

TRIREME_INLINE bool reaches(const float* values, std::size_t count, std::uint32_t threshold) {
  std::uint32_t any = 0;
  for (std::size_t i = 0; i < count; ++i) any |= magnitude(values[i]) >= threshold ? 1U : 0U;
  return any != 0;
}

std::size_t num_ranges(std::size_t num_values) { return (num_values + kRange - 1) / kRange; }
std::size_t count_bytes(std::size_t num_values) { return num_ranges(num_values) * sizeof(std::uint32_t); }

/// The sections of bytes that fit the format.
struct Parts {
  Parts(std::span<const std::byte> bytes, std::size_t num_values)
      : counts(numbers_at<std::uint32_t>(bytes.data())),
        count((bytes.size() - count_bytes(num_values)) / kPairBytes),
        values(numbers_at<float>(bytes.data() + count_bytes(num_values))),
        places(numbers_at<std::uint16_t>(bytes.data() + count_bytes(num_values) + count * sizeof(float))) {}

  const Unaligned<std::uint32_t>* counts;
  std::size_t count;  ///< of all ranges
  const Unaligned<float>* values;
  const Unaligned<std::uint16_t>* places;
};

/// Calls `use(place, value)` for every pair; `bytes` must fit the format.
template <class Use>
void for_each_pair(std::span<const std::byte> bytes, std::size_t num_values, const Use& use) {
  const Parts parts(bytes, num_values);
  std::size_t i = 0;
  for (std::size_t range = 0; range < num_ranges(num_values); ++range) {
    const std::size_t first = range * kRange, end = i + parts.counts[range].value;
    for (; i < end; ++i) use(first + parts.places[i].value, parts.values[i].value);
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
  return count_bytes(num_values) + num_named * kPairBytes;
}

std::size_t PairsCodec::encode(std::span<const float> values, const Options& options,
                               std::span<std::byte> bytes) const {
  const Places places = choose(values, options);
  auto* count = numbers_at<std::uint32_t>(bytes.data());
  auto* value = numbers_at<float>(bytes.data() + count_bytes(values.size()));
  auto* offset = numbers_at<std::uint16_t>(reinterpret_cast<std::byte*>(value + places.size()));
  auto begin = places.begin();
  for (std::size_t first = 0; first < values.size(); first += kRange, ++count) {
    const auto end = std::lower_bound(begin, places.end(), first + kRange);
    count->value = static_cast<std::uint32_t>(end - begin);
    for (; begin != end; ++begin, ++offset, ++value) {
      offset->value = static_cast<std::uint16_t>(*begin - first);
      value->value = values[*begin];
    }
  }
  return bytes_for(values.size(), places.size());
}

bool PairsCodec::fits(std::span<const std::byte> bytes, std::size_t num_values) const {
  if (bytes.size() < count_bytes(num_values)) return false;
  const Parts parts(bytes, num_values);
  if (bytes.size() != bytes_for(num_values, parts.count)) return false;
  std::size_t i = 0;
  for (std::size_t range = 0; range < num_ranges(num_values); ++range) {
    const std::size_t most = std::min(kRange, num_values - range * kRange), begin = i;
    const std::size_t count = parts.counts[range].value;
    if (count > most || count > parts.count - begin) return false;
    for (; i < begin + count; ++i) {
      const std::size_t place = parts.places[i].value;
      if (place >= most || (i > begin && place <= parts.places[i - 1].value)) return false;
    }
  }
  return i == parts.count;
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
