#pragma once
// Random numbers that depend on a key and on nothing else: no global state, the same on every platform and
// compiler. The generator is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
// generators", OOPSLA 2014). Its state is hashed from (seed, key, key...) with its own finalizer. Not for
// secrets. A value; one thread at a time.

#include <cstdint>
#include <string_view>

namespace trireme {

class Random {
 public:
  /// Streams with different seeds or keys are unrelated: Random(seed, epoch), Random(seed, key_of("fc1")).
  template <class... Keys>
  explicit constexpr Random(std::uint64_t seed, Keys... keys) : state_(mix(seed + kGolden)) {
    ((state_ = mix(state_ ^ mix(static_cast<std::uint64_t>(keys) + kGolden))), ...);
  }

  /// The next 64 random bits.
  constexpr std::uint64_t bits() { return mix(state_ += kGolden); }

  /// Continues as after `count` more calls of bits(), at the cost of one.
  constexpr void skip(std::uint64_t count) { state_ += count * kGolden; }

  /// Uniform in [0, 1) with 24 bits: every value is a float exactly.
  constexpr float uniform() { return static_cast<float>(bits() >> 40) * 0x1p-24F; }

  /// Uniform in [0, bound), without bias (Lemire, "Fast random integer generation in an interval", 2019).
  /// `bound` is 1 to 2^32.
  constexpr std::uint64_t below(std::uint64_t bound) {
    std::uint64_t product = (bits() >> 32) * bound;
    if (static_cast<std::uint32_t>(product) < bound) {
      const std::uint64_t biased = (std::uint64_t{1} << 32) % bound;
      while (static_cast<std::uint32_t>(product) < biased) product = (bits() >> 32) * bound;
    }
    return product >> 32;
  }

  /// A key for a name (FNV-1a, 64 bits).
  static constexpr std::uint64_t key_of(std::string_view name) {
    std::uint64_t hash = 0xcbf29ce484222325;
    for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
    return hash;
  }

 private:
  static constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15;
  static constexpr std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  std::uint64_t state_;
};

}  // namespace trireme
