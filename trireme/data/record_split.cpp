#include "trireme/data/internal/record_split.h"

#include <algorithm>

namespace trireme::data {

RecordSplit::RecordSplit(const std::filesystem::path& folder, const PackedSplit& split) {
  for (const ShardSummary& shard : split.shards) {
    shards_.push_back(std::make_unique<ShardFile>(folder, shard, size_));
    size_ += shard.records;
  }
}

RecordSplit::Place RecordSplit::find(std::int64_t sample) const {
  const auto behind =
      std::upper_bound(shards_.begin(), shards_.end(), sample,
                       [](std::int64_t number, const auto& shard) { return number < shard->first(); });
  const ShardFile& shard = **std::prev(behind);
  return {.shard = &shard, .record = sample - shard.first()};
}

}  // namespace trireme::data
