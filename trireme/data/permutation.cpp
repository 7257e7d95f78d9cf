#include "trireme/data/permutation.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "trireme/base/error.h"

namespace trireme::data {
namespace {

constexpr int kRounds = 8;
constexpr std::int64_t kFew = 256;

std::uint64_t round_of(std::uint64_t half, std::uint64_t key) {
  std::uint64_t z = half ^ key;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

Permutation::Permutation(std::int64_t size, Random random)
    : size_(size), rounds_(size < kFew ? kMaxRounds : kRounds), keys_() {
  require(size >= 1 && size <= std::int64_t{1} << 62, "there is no order of ", size,
          " things: 1 to 2^62 can be shuffled");
  const int bits = std::max(2, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(size - 1))));
  left_bits_ = bits / 2;
  right_bits_ = bits - left_bits_;
  for (int round = 0; round < rounds_; ++round) keys_[static_cast<std::size_t>(round)] = random.bits();
}

std::uint64_t Permutation::once(std::uint64_t number) const {
  int left_bits = left_bits_, right_bits = right_bits_;
  std::uint64_t left = number >> right_bits;
  std::uint64_t right = number & ((std::uint64_t{1} << right_bits) - 1);
  for (int round = 0; round < rounds_; ++round) {
    const std::uint64_t mixed = round_of(right, keys_[static_cast<std::size_t>(round)]) >> (64 - left_bits);
    left = std::exchange(right, left ^ mixed);
    std::swap(left_bits, right_bits);
  }
  return left << right_bits | right;
}

std::int64_t Permutation::operator[](std::int64_t place) const {
  require(place >= 0 && place < size_, "there is no place ", place, " in an order of ", size_);
  auto number = static_cast<std::uint64_t>(place);
  do number = once(number);
  while (number >= static_cast<std::uint64_t>(size_));
  return static_cast<std::int64_t>(number);
}

}  // namespace trireme::data
