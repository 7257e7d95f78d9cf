#include "trireme/parallel/zero/gradient_buckets.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

#include "trireme/parallel/zero/internal/shard_layout.h"

namespace trireme::parallel {
namespace {

/// Below this, waiting for smaller buckets costs more than the memory that they save.
constexpr std::int64_t kMinLimitedBytes = 1 << 20;

/// The largest bucket of a stage.
std::int64_t largest_bucket(const std::vector<std::int64_t>& parameter_bytes, const ShardLayout& layout) {
  std::vector<Parameter> parameters;
  for (const std::int64_t bytes : parameter_bytes)
    parameters.push_back({.name = "", .tensor = at::empty({bytes}, at::device(at::kMeta).dtype(at::kByte))});
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.rbegin(), order.rend(), 0);
  std::int64_t most = 0;
  for (const ShardBucket& bucket : lay_out_shards(parameters, order, layout))
    most = std::max(most, bucket.part * layout.num_ranks);
  return most;
}

}  // namespace

BucketLimits bucket_limits(std::span<const std::int64_t> parameter_bytes, int num_ranks) {
  std::int64_t all = 0, largest = 0;
  for (const std::int64_t bytes : parameter_bytes) {
    all += bytes;
    largest = std::max(largest, bytes);
  }
  const std::int64_t room = all - all / num_ranks;
  if (all < kMinLimitedBytes) return {};
  if (2 * largest <= room) return {.at_a_time = 2, .most_bytes = room / 2};
  if (largest <= room) return {.at_a_time = 1, .most_bytes = room};
  return {.at_a_time = BucketLimits::kAll};
}

std::int64_t bytes_of_buckets(const std::vector<std::vector<std::int64_t>>& stages, int num_ranks,
                              const DataParallelOptions& options) {
  std::vector<std::int64_t> parameters;
  for (const auto& stage : stages) parameters.insert(parameters.end(), stage.begin(), stage.end());
  const BucketLimits limits = bucket_limits(parameters, num_ranks);
  if (limits.at_a_time == BucketLimits::kAll)
    return std::accumulate(parameters.begin(), parameters.end(), std::int64_t{0});
  const ShardLayout layout = shard_layout(options, num_ranks, limits);
  std::int64_t most = 0;
  for (const auto& stage : stages) most = std::max(most, largest_bucket(stage, layout));
  return static_cast<std::int64_t>(limits.at_a_time) * most;
}

}  // namespace trireme::parallel
