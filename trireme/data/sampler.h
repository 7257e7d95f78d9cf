#pragma once
// Which samples make up which global batch. The order of an epoch is a permutation that depends on (seed,
// epoch) only, never on ranks, workers or accumulation; a batch is the next `global_batch` of it, the last
// one of an epoch may be smaller. A rank takes its part of a batch by arithmetic alone. Immutable;
// thread-safe.

#include <cstdint>
#include <vector>

namespace trireme::data {

/// Part `index` of `count` near-equal consecutive parts of [0, size): the first size % count are one longer.
struct Slice {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
};
Slice slice_of(std::int64_t size, std::int64_t index, std::int64_t count);

class Sampler {
 public:
  enum class Order { kShuffled, kSequential };
  /// Throws InvalidArgument unless 1 <= global_batch and 1 <= num_samples.
  Sampler(std::int64_t num_samples, std::int64_t global_batch, std::uint64_t seed, Order order);

  std::int64_t batches_per_epoch() const;
  /// Samples in global batch `batch`, 0 <= batch < batches_per_epoch(): fewer in the last one of an epoch.
  std::int64_t batch_size(std::int64_t batch) const;
  /// All sample numbers in the order of `epoch`; batch b begins at place b * global_batch. Computed at each
  /// call, in time and memory of all samples: who needs it more than once keeps it.
  std::vector<std::int64_t> epoch_order(std::uint64_t epoch) const;

 private:
  std::int64_t num_samples_, global_batch_;
  std::uint64_t seed_;
  Order order_;
};

}  // namespace trireme::data
