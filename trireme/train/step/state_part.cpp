#include "trireme/train/step/state_part.h"

#include <utility>

namespace trireme::train {

StatePart state_part(const std::string& prefix, const checkpoint::TensorMap& tensors,
                     const ShardSpecs& held) {
  StatePart part{.prefix = prefix, .shards = shards_of(tensors, held)};
  for (checkpoint::Shard& shard : part.shards) shard.name = prefix + shard.name;
  return part;
}

checkpoint::Shards shards_of(const StateParts& parts) {
  checkpoint::Shards shards;
  for (const StatePart& part : parts) shards.insert(shards.end(), part.shards.begin(), part.shards.end());
  return shards;
}

void keep_where_not_stored(StatePart& part) {
  part.restore = [shards = part.shards](const StoredSizes& stored) {
    Restoration restoration;
    for (const checkpoint::Shard& shard : shards) {
      if (stored.contains(shard.name)) restoration.shards.push_back(shard);
    }
    return restoration;
  };
}

}  // namespace trireme::train
