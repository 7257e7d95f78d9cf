#pragma once
// Which samples make up which global batch. The order of an epoch is a permutation that depends on (seed,
// epoch) only, never on ranks, workers or accumulation; a batch is the next `global_batch` of it, the last
// one of an epoch may be smaller. A rank takes its part of a batch by arithmetic alone. Immutable;
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
/// Where the share of a rank lies in it: one behind the other.
Slice share_of(const Shares& shares, std::int64_t rank);

/// The places of part `index` of `count`, when places that cost differently are dealt so that parts cost
/// alike: as many to each part as slice_of gives it, the dearest first, each to the part that has cost least
/// so far (Graham, "Bounds on multiprocessing timing anomalies", 1969). In ascending order; a function of its
/// arguments.
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
  /// Where samples lie in shards, one behind the other: the end of each. Empty: they do not.
  std::vector<std::int64_t> shard_ends = {};
  /// Shuffled: shards come in any order, and samples are mixed among so many of them at a time, for what is
  /// slow to read here and there. 0, or as many as there are: among all.
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
    std::int64_t end;         ///< the place behind its last sample
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
  /// Throws InvalidArgument unless 1 <= global_batch and 1 <= num_samples, and for shards that do not rise
  /// or do not end where the samples do.
  Sampler(std::int64_t num_samples, std::int64_t global_batch, OrderOptions order);

  std::int64_t batches_per_epoch() const;
  /// Samples in global batch `batch`, 0 <= batch < batches_per_epoch(): fewer in the last one of an epoch.
  std::int64_t batch_size(std::int64_t batch) const;
  /// Batch b begins at place b * global_batch. Constant time; of shards, as many steps as there are.
  EpochOrder order_of(std::uint64_t epoch) const;

 private:
  std::int64_t num_samples_, global_batch_;
  OrderOptions order_;
};

}  // namespace trireme::data
