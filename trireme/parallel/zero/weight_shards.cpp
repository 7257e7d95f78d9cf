#include "trireme/parallel/zero/internal/weight_shards.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>

#include <algorithm>
#include <utility>

#include "trireme/parallel/counted_memory.h"

namespace trireme::parallel {
namespace {

/// A tensor of its own over part of `flat`'s memory, in row-major order.
at::Tensor view_in(const at::Tensor& flat, std::int64_t begin, at::IntArrayRef sizes) {
  at::Tensor view = at::empty({0}, flat.options());
  view.set_(flat.storage(), flat.storage_offset() + begin, sizes, c10::contiguous_strides(sizes));
  return view;
}

void give_memory(const at::Tensor& flat) {
  c10::StorageImpl* storage = flat.storage().unsafeGetStorageImpl();
  c10::Allocator* allocator = storage->allocator();
  if (allocator == nullptr) allocator = c10::GetAllocator(storage->device_type());
  const std::size_t bytes = static_cast<std::size_t>(flat.numel()) * flat.element_size();
  storage->set_data_ptr_noswap(allocator->allocate(bytes));
  storage->set_nbytes(bytes);
  count_as(MemoryKind::kWeights, flat);
}

void take_memory_back(const at::Tensor& flat) {
  c10::StorageImpl* storage = flat.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, storage->device()));
  storage->set_nbytes(0);
}

}  // namespace

WeightShards::WeightShards(comm::Group group, const std::vector<Parameter>& parameters,
                           const std::vector<ShardBucket>& buckets, BetweenUses between_uses)
    : group_(std::move(group)), between_uses_(between_uses) {
  const at::NoGradGuard no_grad;
  for (const ShardBucket& bucket : buckets) {
    const at::Tensor& first = parameters[bucket.slots.front().parameter].tensor;
    take_memory(bucket, first.options().requires_grad(false));
    for (const ShardSlot& slot : bucket.slots) {
      const at::Tensor& parameter = parameters[slot.parameter].tensor;
      leaves_.push_back({.parameter = parameter,
                         .view = view_in(shards_.back().whole, slot.begin, parameter.sizes()),
                         .hollow = at::empty({0}, shards_.back().whole.options())});
    }
  }
  take_values();
  token_ = group_.allocate(1, at::kInt);
}

void WeightShards::take_memory(const ShardBucket& bucket, const at::TensorOptions& options) {
  const std::int64_t numel = bucket.part * group_.size();
  Shard shard{.whole = group_.allocate_common(numel, options), .part = {}};
  common_ = shard.whole.defined();
  if (!common_) shard.whole = at::empty({numel}, options);
  count_as(MemoryKind::kWeights, shard.whole);
  shard.part = shard.whole.narrow(0, bucket.part * group_.rank(), bucket.part);
  shards_.push_back(std::move(shard));
}

/// The values of the first rank: common memory is written by it alone, else they go to all.
void WeightShards::take_values() {
  if (group_.rank() == 0) {
    for (const Leaf& leaf : leaves_) at::Tensor(leaf.view).copy_(leaf.parameter);
  }
  show();  // the parameters' own memory is free from here on
  if (common_) {
    group_.barrier();
    return;
  }
  for (Shard& shard : shards_) {
    group_.broadcast(shard.whole, /*root=*/0);
    if (between_uses_ == BetweenUses::kKept) continue;
    shard.part = shard.part.clone();
    count_as(MemoryKind::kWeights, shard.part);
  }
}

void WeightShards::show() {
  for (const Leaf& leaf : leaves_) leaf.parameter.set_data(leaf.view);
}

at::Tensor WeightShards::piece(const ShardPiece& piece, at::IntArrayRef of_whole) const {
  std::vector<std::int64_t> sizes = of_whole.vec();
  if (piece.numel < c10::multiply_integers(of_whole)) {
    std::ranges::fill(sizes, 1);
    sizes.back() = piece.numel;
  }
  return view_in(shards_[piece.bucket].part, piece.place, sizes);
}

void WeightShards::gather() {
  if (gathered_ && current_) return;
  const at::NoGradGuard no_grad;
  if (common_) {
    pending_.push_back(group_.all_reduce_async(token_));
  } else {
    gather_parts();
  }
  gathered_ = current_ = true;
}

void WeightShards::gather_parts() {
  for (Shard& shard : shards_) {
    if (!gathered_) give_memory(shard.whole);
    // A part that lies in the whole is read while the whole is written.
    const bool inside = between_uses_ == BetweenUses::kKept;
    pending_.push_back(group_.all_gather_async(shard.whole, inside ? shard.part.clone() : shard.part));
  }
}

void WeightShards::wait() {
  if (pending_.empty()) return;
  for (comm::Pending& each : std::exchange(pending_, {})) each.wait();
  if (between_uses_ == BetweenUses::kReleased && !common_) show();
}

void WeightShards::release() {
  if (common_ || between_uses_ == BetweenUses::kKept || !gathered_) return;
  wait();
  hide();
  gathered_ = false;
}

void WeightShards::hide() {
  for (const Leaf& leaf : leaves_) leaf.parameter.set_data(leaf.hollow);
  for (const Shard& shard : shards_) take_memory_back(shard.whole);
}

std::shared_ptr<void> WeightShards::lend() {
  wait();
  if (gathered_) return nullptr;
  for (const Shard& shard : shards_) give_memory(shard.whole);
  show();
  return {this, [](WeightShards* shards) { shards->hide(); }};
}

}  // namespace trireme::parallel
