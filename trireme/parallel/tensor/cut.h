#pragma once
// How a dim of a tensor is split over the ranks of a group: into consecutive parts that differ by one at
// most. Nothing is padded: ranks may hold different sizes, or nothing if there are more ranks than elements.
// So every size and every number of ranks gives the numbers of one rank. A dim may consist of several parts
// side by side that are each split separately (queries, keys and values), in whole units (heads). Values;
// thread-safe.

#include <cstdint>
#include <vector>

namespace trireme::parallel {

/// The elements `begin` to `begin + size` - 1 of a dim.
struct Range {
  std::int64_t begin = 0;
  std::int64_t size = 0;
  friend bool operator==(const Range&, const Range&) = default;
};

/// The part of `size` things that rank `rank` of `ranks` has.
constexpr Range part_of_rank(std::int64_t size, int rank, int ranks) {
  const std::int64_t begin = size * rank / ranks;
  return {.begin = begin, .size = size * (rank + 1) / ranks - begin};
}

struct DimCut {
  std::int64_t size = 0;   ///< of the whole dim
  std::int64_t parts = 1;  ///< equal parts side by side, each cut for itself; a divisor of size
  std::int64_t unit = 1;   ///< elements that stay together; a divisor of each part

  /// The rank's part of the dim, a range for each part, in their order.
  std::vector<Range> ranges(int rank, int ranks) const;
  std::int64_t size_on(int rank, int ranks) const;
  /// Throws InvalidArgument: sizes that are not divisible as described above; `who` names the dim in the
  /// message.
  void check(const char* who) const;
};

}  // namespace trireme::parallel
