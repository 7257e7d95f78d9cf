#pragma once
// What workers under faults have pushed, and how long they waited: read while they run. Integers as f32, so
// that sums are exact in any order.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace trireme::cli {

inline constexpr std::uint32_t kChunks = 64, kChunkElements = 1024;
inline constexpr std::uint32_t kRows = 4096, kRowElements = 4;

/// Far apart, in every partition.
inline std::uint64_t key_of(std::uint32_t row) { return (row + 1) * 0x9e3779b97f4a7c15U; }

/// What an element of a push is.
inline float element_of(std::uint32_t amount, std::uint32_t index) {
  return static_cast<float>(amount + index % 3);
}

/// What all workers together have begun to push, and what they were told is there.
struct Ledger {
  std::array<std::atomic<std::uint64_t>, kChunks> amounts{}, pushes{}, acknowledged{};
  std::array<std::atomic<std::uint64_t>, kRows> row_amounts{};

  /// Whether this may be the sum of pushes: all elements are of the same ones.
  bool may_hold(std::uint32_t chunk, const float* values, std::uint64_t least) const {
    const auto amount = static_cast<std::uint64_t>(values[0]);
    const auto count = static_cast<std::uint64_t>(values[1]) - amount;
    for (std::uint32_t i = 0; i < kChunkElements; ++i) {
      if (static_cast<std::uint64_t>(values[i]) != amount + count * (i % 3)) return false;
    }
    return amount >= least && amount <= amounts[chunk] && count <= pushes[chunk];
  }
};

struct Fault {
  std::string kind;
  bool kills_server = false;  ///< its connections close, so its lease does not have to expire
  double longest_wait_s = 0;  ///< of a push that was answered before the next fault
};

/// From any thread.
class Faults {
 public:
  void add(Fault fault) {
    const std::lock_guard lock(mutex_);
    faults_.push_back(std::move(fault));
  }
  void note_wait(double waited_s) {
    const std::lock_guard lock(mutex_);
    if (!faults_.empty()) faults_.back().longest_wait_s = std::max(faults_.back().longest_wait_s, waited_s);
  }
  std::vector<Fault> all() const {
    const std::lock_guard lock(mutex_);
    return faults_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Fault> faults_;
};

}  // namespace trireme::cli
