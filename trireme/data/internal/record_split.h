#pragma once
// The shards of one split of packed data as one row of records. Immutable; thread-safe.

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/data/internal/packed_manifest.h"
#include "trireme/data/internal/record_shard.h"
#include "trireme/data/packed_files.h"

namespace trireme::data {

class RecordSplit {
 public:
  /// Opens every shard, far ones some at a time. Throws DataError as ShardFile does.
  RecordSplit(const PackedFiles& files, const PackedSplit& split);

  std::int64_t size() const { return size_; }
  const std::vector<std::unique_ptr<ShardFile>>& shards() const { return shards_; }
  struct Place {
    const ShardFile* shard;
    std::int64_t record;
  };
  /// 0 <= sample < size().
  Place find(std::int64_t sample) const;

 private:
  std::vector<std::unique_ptr<ShardFile>> shards_;
  std::int64_t size_ = 0;
};

}  // namespace trireme::data
