#pragma once
// How many buckets of sharded gradients a rank has at a time, and how large they are. Shards and buckets
// together take no more memory than whole gradients, which a rank has without sharding. A run and the
// forecast of its memory use the same functions. Pure; thread-safe.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "trireme/parallel/data/distributed_data_parallel.h"

namespace trireme::parallel {

struct BucketLimits {
  /// Of `at_a_time`: every bucket keeps its memory until the update, and a rank's shard is in it, in place.
  static constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

  std::size_t at_a_time = 2;  ///< buckets that have memory
  /// Of a bucket that has several parameters. A larger parameter has a bucket of its own.
  std::int64_t most_bytes = std::numeric_limits<std::int64_t>::max();
};

/// For a rank with parameters of these bytes, whose gradients are sharded over `num_ranks` ranks. Two buckets
/// where they fit into whole gradients next to the rank's shard, else one; kAll where the largest parameter
/// does not fit. With less than 1 MiB of parameters two, as large as configured.
BucketLimits bucket_limits(std::span<const std::int64_t> parameter_bytes, int num_ranks);

/// Bytes of the buckets that a rank has at a time, with padding. `stages` are the bytes of each stage's
/// parameters of one type, in the model's order.
std::int64_t bytes_of_buckets(const std::vector<std::vector<std::int64_t>>& stages, int num_ranks,
                              const DataParallelOptions& options);

}  // namespace trireme::parallel
