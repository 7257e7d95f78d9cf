#pragma once
// In which order samples come, and which part of a batch is whose. The order of an epoch is a permutation
// that depends on (seed, epoch) only, never on ranks, workers, accumulation or how large batches are; a batch
// is a row of its places (batch_layout.h). A rank takes its part of a batch by arithmetic alone. Immutable;
// thread-safe.

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/data/permutation.h"

namespace trireme::data {

/// Part `index` of `count` near-equal consecutive parts of [0, size): the first size % count are one longer.
struct Slice {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
};
/// Part `index` of `count` parts of `size` things, in one piece; parts differ by one at most, the larger ones
/// first.
Slice slice_of(std::int64_t size, std::int64_t index, std::int64_t count);

/// How many samples of a full batch each rank takes; their sum is the batch.
using Shares = std::vector<std::int64_t>;
/// The slice of a rank's share in it: shares are one after the other.
Slice share_of(const Shares& shares, std::int64_t rank);
/// The same shares of a batch of `size` samples, in proportion; each keeps two samples for each of its
/// micro-batches, or one where there are not so many. Throws InvalidArgument: fewer samples than
/// micro-batches of all.
Shares scaled_shares(const Shares& shares, std::int64_t size, std::int64_t microbatches);

/// The places of part `index` of `count`, dealt so that all parts have about the same cost. Each part gets as
/// many places as in slice_of. The most expensive places are dealt first, each to the part with the lowest
/// cost so far (Graham, "Bounds on multiprocessing timing anomalies", 1969). In ascending order; a function
/// of its arguments.
std::vector<std::int64_t> balanced_part(std::span<const double> costs, std::int64_t index,
                                        std::int64_t count);

/// In which order an epoch goes through the samples.
enum class Order {
  kShuffled,    ///< any sample may be at any place
  kSequential,  ///< as they are numbered
};

/// How an epoch is shuffled.
struct OrderOptions {
  Order order = Order::kShuffled;
  std::uint64_t seed = 0;
  /// Where samples are in shards, one after the other: the end of each. Empty: they are not.
  std::vector<std::int64_t> shard_ends = {};
  /// Shuffled: shards come in any order, and samples are mixed among so many shards at a time, for storage
  /// with slow random reads. 0, or the number of shards: among all.
  std::int64_t open_shards = 0;
};

/// The samples of one epoch by place.
class EpochOrder {
 public:
  /// Constant time; of shards, the logarithm of their number. 0 <= place < number of samples.
  std::int64_t operator[](std::int64_t place) const;

 private:
  friend class Sampler;
  /// Shards that are open together.
  struct Window {
    std::int64_t end;         ///< the place after its last sample
    std::size_t first_shard;  ///< in `shards`
    Permutation within;       ///< of its samples
  };
  struct Shard {
    std::int64_t first;  ///< sample
    std::int64_t end;    ///< samples of its window up to here
  };

  std::int64_t num_samples_ = 0;
  std::vector<Window> windows_;  ///< empty: in the order of their numbers
  std::vector<Shard> shards_;    ///< in the epoch's order
};

class Sampler {
 public:
  /// Throws InvalidArgument unless 1 <= num_samples, and for shards that do not rise or do not end where the
  /// samples do.
  Sampler(std::int64_t num_samples, OrderOptions order);

  /// Constant time; of shards, as many steps as there are.
  EpochOrder order_of(std::uint64_t epoch) const;

 private:
  std::int64_t num_samples_;
  OrderOptions order_;
};

}  // namespace trireme::data
