#pragma once
// A shuffled order as a function that needs no memory: the item at a place, of `size` items. Any place is
// found in constant time. So nothing is shuffled at the start of an epoch or on a resume. The size may be up
// to 2^62. A Feistel network permutes the numbers of the smallest sufficient count of bits; its halves may
// differ by a bit. It is repeated until the result is below the size (Black and Rogaway, "Ciphers with
// arbitrary finite domains", CT-RSA 2002). 8 rounds; 32 below 256 items, where fewer rounds are measured to
// prefer some orders. The same on every platform. Not for secrets. An immutable value.

#include <array>
#include <cstdint>

#include "trireme/base/random.h"

namespace trireme::data {

class Permutation {
 public:
  /// A function of both: Permutation(samples, Random(seed, epoch)). Throws InvalidArgument unless
  /// 1 <= size <= 2^62.
  Permutation(std::int64_t size, Random random);

  std::int64_t size() const { return size_; }
  /// 0 <= place < size(); below that bound every number comes once. About 30 ns on a core of an EPYC server.
  std::int64_t operator[](std::int64_t place) const;

 private:
  static constexpr int kMaxRounds = 32;

  std::uint64_t once(std::uint64_t number) const;

  std::int64_t size_;
  int left_bits_, right_bits_, rounds_;
  std::array<std::uint64_t, kMaxRounds> keys_;
};

}  // namespace trireme::data
