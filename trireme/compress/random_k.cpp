// random-k: one value from each of as many parts of like length as may be named; which one, the seed decides,
// so that places cost no bytes and every value has the same chance. Bytes:
//
//   u64 seed | f32 values[count], rising

#include <algorithm>
#include <cmath>
#include <cstring>

#include "trireme/base/random.h"
#include "trireme/compress/internal/codecs.h"

namespace trireme::compress {
namespace {

/// Calls `use(place, i)` for the i-th of `count` places among `num_values`.
template <class Use>
void for_each_place(std::uint64_t seed, std::size_t num_values, std::size_t count, const Use& use) {
  Random random(seed);
  for (std::size_t i = 0, begin = 0; i < count; ++i) {
    const std::size_t end = (i + 1) * num_values / count;
    use(begin + random.below(end - begin), i);
    begin = end;
  }
}

class RandomKCodec final : public Codec {
 public:
  bool leaves_out() const override { return true; }
  std::size_t most_bytes(std::size_t num_values, const Options& options) const override {
    return sizeof(std::uint64_t) + most_named(num_values, options) * sizeof(float);
  }
  std::size_t encode(std::span<const float> values, const Options& options,
                     std::span<std::byte> bytes) const override {
    std::memcpy(bytes.data(), &options.seed, sizeof options.seed);
    auto* named = numbers_at<float>(bytes.data() + sizeof options.seed);
    for_each_place(options.seed, values.size(), most_named(values.size(), options),
                   [&](std::size_t place, std::size_t i) { named[i].value = values[place]; });
    return most_bytes(values.size(), options);
  }
  bool fits(std::span<const std::byte> bytes, std::size_t num_values) const override {
    constexpr std::size_t kLeast = sizeof(std::uint64_t) + sizeof(float);
    return bytes.size() >= kLeast && bytes.size() % sizeof(float) == 0 && count_in(bytes) <= num_values;
  }
  void decode(std::span<const std::byte> bytes, std::span<float> values) const override {
    std::ranges::fill(values, 0.0F);
    for_each_named(bytes, values.size(), [&](std::size_t place, float value) { values[place] = value; });
  }
  void add(std::span<const std::byte> bytes, std::span<float> values) const override {
    for_each_named(bytes, values.size(), [&](std::size_t place, float value) { values[place] += value; });
  }
  void take_out(std::span<const std::byte> bytes, std::span<float> values) const override {
    for_each_named(bytes, values.size(), [&](std::size_t place, float) { values[place] = 0; });
  }

 private:
  static std::size_t count_in(std::span<const std::byte> bytes) {
    return (bytes.size() - sizeof(std::uint64_t)) / sizeof(float);
  }
  template <class Use>
  static void for_each_named(std::span<const std::byte> bytes, std::size_t num_values, const Use& use) {
    std::uint64_t seed = 0;
    std::memcpy(&seed, bytes.data(), sizeof seed);
    const auto* named = numbers_at<float>(bytes.data() + sizeof seed);
    for_each_place(seed, num_values, count_in(bytes),
                   [&](std::size_t place, std::size_t i) { use(place, named[i].value); });
  }
};

}  // namespace

const Codec& random_k_codec() {
  static const RandomKCodec kCodec;
  return kCodec;
}

}  // namespace trireme::compress
