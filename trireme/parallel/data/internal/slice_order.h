#pragma once
// Order of the reductions of gradient buckets, slice by slice: slices that the next forward needs first go
// first, of those that all ranks have. Each rank decides alone, and all decide the same, for any clocks and
// threads. A decision depends on the decisions before it, and on the results of reductions, which are the
// same everywhere. So there is no leader and no message. Each slice carries the number of further ready
// buckets (num_here()). Buckets that all ranks have may be overtaken from a later slice on. Where none is
// ready the next bucket is waited for, in the order in which they become ready: first in, first out. (P3:
// Jayarajan et al., MLSys 2019; ByteScheduler: Peng et al., SOSP 2019, where one rank decides.) A value; not
// thread-safe.

#include <cstdint>
#include <map>

namespace trireme::parallel {

class SliceOrder {
 public:
  /// Number of further buckets whose readiness a slice can carry.
  static constexpr int kWindow = 64;

  /// A bucket is there on this rank: the next one of an order that all ranks have. `need`: its place in the
  /// next forward.
  void add(std::int64_t numel, std::int64_t slice_numel, std::int64_t need) {
    here_[num_added_++] = {.numel = numel, .slice_numel = slice_numel, .need = need};
  }
  bool is_here(std::uint64_t bucket) const { return bucket < num_added_; }

  /// The bucket that the next slice is of, by the number of its add() from 0 on; it may have to be waited for
  /// here.
  std::uint64_t choose();

  struct Slice {
    std::uint64_t bucket;
    std::int64_t begin, numel;
  };
  /// The next slice of a chosen bucket that is here.
  Slice take(std::uint64_t bucket);

  /// The first bucket of which it is not known that all ranks have it.
  std::uint64_t first_unknown() const { return num_known_; }
  /// How many from there on are here, kWindow at the most.
  int num_here() const;
  /// A slice that went when first_unknown() was `first` has brought that all ranks have so many of them. At
  /// the same place among the choices on all ranks.
  void learn(std::uint64_t first, int num_everywhere);

 private:
  struct Bucket {
    std::int64_t numel, slice_numel, need;
    std::int64_t taken = 0;
  };
  std::map<std::uint64_t, Bucket> here_;  ///< those of which something is left
  std::uint64_t num_added_ = 0;
  std::uint64_t num_known_ = 0;  ///< the first ones: known to be everywhere, or chosen and waited for
};

}  // namespace trireme::parallel
