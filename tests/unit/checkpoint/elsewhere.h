#pragma once
// Shards with offloaded values. Their tensors are on the meta device. The values are in tensors that only an
// OffloadedStorage can access, like a file.

#include <ATen/ops/empty_strided.h>

#include <memory>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/checkpoint/shard.h"

namespace trireme::checkpoint {

class AwayStore : public std::enable_shared_from_this<AwayStore> {
 public:
  /// Returns the shard, and keeps the values of its tensor here.
  Shard take(Shard shard) {
    const at::Tensor values = shard.tensor.contiguous().clone();
    shard.tensor = at::empty_strided(values.sizes(), values.strides(), values.options().device(at::kMeta));
    kept_.emplace_back(shard.tensor, values);
    shard.offloaded_storage = std::make_shared<OffloadedStorage>(OffloadedStorage{
        .fetch = [store =
                      shared_from_this()](const at::Tensor& view) { return store->values_of(view).clone(); },
        .put = [store = shared_from_this()](
                   const at::Tensor& view,
                   const at::Tensor& values_there) { store->values_of(view).copy_(values_there); }});
    return shard;
  }
  Shards take(Shards shards) {
    for (Shard& shard : shards) shard = take(std::move(shard));
    return shards;
  }
  /// The shards with tensors that contain the values.
  Shards in_memory(Shards shards) const {
    for (Shard& shard : shards) shard.tensor = values_of(shard.tensor);
    return shards;
  }
  /// The values of an offloaded tensor, or of a view of it.
  at::Tensor values_of(const at::Tensor& view) const {
    for (const auto& [holder, values] : kept_) {
      if (holder.storage().unsafeGetStorageImpl() == view.storage().unsafeGetStorageImpl())
        return values.as_strided(view.sizes(), view.strides(), view.storage_offset());
    }
    throw InvalidArgument("a tensor that is not here");
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> kept_;
};

}  // namespace trireme::checkpoint
