#pragma once
// Sequence numbers of one worker that a partition has taken: all up to `contiguous`, and some of the next
// kReach. Numbers may come in any order and more than once; each is taken once. A value. It is part of the
// replicated state, so the new primary recognizes a request that is sent again after a failure.

#include <array>
#include <cstdint>
#include <tuple>

#include "trireme/ps/ids.h"

namespace trireme::ps {

class SequenceWindow {
 public:
  static constexpr Sequence kReach = 256;

  Sequence contiguous() const { return contiguous_; }
  /// Whether it was taken before.
  bool contains(Sequence sequence) const {
    if (sequence <= contiguous_) return true;
    return !too_far(sequence) && bit(sequence);
  }
  /// Further ahead than the window remembers: its sender has more under way than it may have.
  bool too_far(Sequence sequence) const { return sequence > contiguous_ + kReach; }
  /// It is neither contained nor too far.
  void take(Sequence sequence) {
    words_[word(sequence)] |= mask(sequence);
    while (bit(contiguous_ + 1)) {
      ++contiguous_;
      words_[word(contiguous_)] &= ~mask(contiguous_);
    }
  }
  auto operator<=>(const SequenceWindow&) const = default;

  template <class Self>
  static auto fields(Self& self) {
    static_assert(kReach == 4 * 64);
    return std::tie(self.contiguous_, self.words_[0], self.words_[1], self.words_[2], self.words_[3]);
  }

 private:
  static std::size_t word(Sequence sequence) { return sequence % kReach / 64; }
  static std::uint64_t mask(Sequence sequence) { return std::uint64_t{1} << sequence % 64; }
  bool bit(Sequence sequence) const { return (words_[word(sequence)] & mask(sequence)) != 0; }

  Sequence contiguous_ = 0;
  std::array<std::uint64_t, kReach / 64> words_{};
};

}  // namespace trireme::ps
