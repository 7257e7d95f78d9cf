#include "trireme/parallel/zero/internal/weight_shards.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>

#include <algorithm>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/parallel/counted_memory.h"
#include "trireme/parallel/data/internal/compressing_hook.h"
#include "trireme/parallel/data/internal/encoded_slot.h"
#include "trireme/parallel/zero/internal/released_parameter.h"

namespace trireme::parallel {
namespace {

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

/// Whether the parameter has the storage, offset, sizes and dtype of `place`.
bool is_in_place(const at::Tensor& parameter, const at::Tensor& place) {
  return parameter.storage().unsafeGetStorageImpl() == place.storage().unsafeGetStorageImpl() &&
         parameter.storage_offset() == place.storage_offset() && parameter.sizes() == place.sizes() &&
         parameter.scalar_type() == place.scalar_type();
}

constexpr const char* kWriteAdvice =
    "load or convert the module before it is wrapped. Later, write this rank's pieces, parameters() of the "
    "FullyShardedDataParallel or Pipeline, and call weights_changed(); or restore with LoopCheckpoints and "
    "train::sharded_loop()";

}  // namespace

at::Tensor tensor_in(const at::Tensor& flat, std::int64_t begin, at::IntArrayRef sizes) {
  at::Tensor tensor = at::empty({0}, flat.options());
  tensor.set_(flat.storage(), flat.storage_offset() + begin, sizes, c10::contiguous_strides(sizes));
  return tensor;
}

WeightShards::WeightShards(comm::Group group, const std::vector<Parameter>& parameters,
                           const std::vector<ShardBucket>& buckets, const WeightShardOptions& options)
    : group_(std::move(group)), offload_(options.offload), hook_(options.hook) {
  const at::NoGradGuard no_grad;
  for (const Parameter& parameter : parameters) names_.push_back(parameter.name);
  for (const ShardBucket& bucket : buckets) {
    const at::Tensor& first = parameters[bucket.slots.front().parameter].tensor;
    take_memory(bucket, first.options().requires_grad(false));
    first_leaf_.push_back(leaves_.size());
    for (const ShardSlot& slot : bucket.slots) {
      const at::Tensor& parameter = parameters[slot.parameter].tensor;
      leaves_.push_back(
          {.parameter = parameter,
           .view = tensor_in(shards_.back().whole, slot.begin, parameter.sizes()),
           .released = released_parameter(parameters[slot.parameter].name, shards_.back().whole),
           .learns = parameter.requires_grad(),
           .version = static_cast<std::int64_t>(parameter._version())});
      numbers_.push_back(slot.parameter);
    }
  }
  releases_ = !common_ && !std::ranges::all_of(shards_, &Shard::kept);
  take_values();
  if (offload_) move_elsewhere();
  token_ = group_.allocate(1, at::kInt);
  // The first values are exact. They must be gathered encoded before use, like all later ones.
  if (std::ranges::any_of(shards_, &Shard::encoded)) current_ = false;
}

void WeightShards::take_memory(const ShardBucket& bucket, at::TensorOptions options) {
  const std::int64_t numel = bucket.part * group_.size();
  Shard shard{
      .whole = {}, .part = {}, .rounded = bucket.use.working_type.has_value(), .kept = bucket.use.is_kept};
  const at::TensorOptions of_whole = shard.rounded ? options.dtype(*bucket.use.working_type) : options;
  if (!offload_) shard.whole = group_.allocate_shared(numel, of_whole);
  common_ = shard.whole.defined();
  if (!common_) shard.whole = at::empty({numel}, of_whole);
  count_as(MemoryKind::kWeights, shard.whole);
  if (!common_ && bucket.use.is_encoded && hook_->weights() != nullptr) {
    for (const ShardSlot& slot : bucket.slots)
      require(bucket.type == at::kFloat, "weights are gathered encoded as f32, and '", names_[slot.parameter],
              "' is ", at::toString(bucket.type), ": keep the parameters in f32, or gather them as they are");
    for (int rank = 0; rank < group_.size(); ++rank) shard.runs.push_back(pieces_of_rank({bucket}, rank));
  }
  if (shard.is_exact()) {
    shard.part = at::zeros({bucket.part}, options);
    count_as(MemoryKind::kWeights, shard.part);
  } else {
    shard.part = place_in_whole(shard);
  }
  shards_.push_back(std::move(shard));
}

/// The rank's part within the whole.
at::Tensor WeightShards::place_in_whole(const Shard& shard) const {
  const std::int64_t part = shard.whole.numel() / group_.size();
  return shard.whole.narrow(0, part * group_.rank(), part);
}

std::span<const WeightShards::Leaf> WeightShards::leaves_of(std::size_t shard) const {
  const std::size_t end = shard + 1 < first_leaf_.size() ? first_leaf_[shard + 1] : leaves_.size();
  return std::span(leaves_).subspan(first_leaf_[shard], end - first_leaf_[shard]);
}

/// Distributes the values of the first rank. Shared memory is written by it alone; otherwise it broadcasts
/// them.
void WeightShards::take_values() {
  for (std::size_t number = 0; number < shards_.size(); ++number) {
    if (shards_[number].is_exact()) {
      take_exact(number);
    } else if (group_.rank() == 0) {
      for (const Leaf& leaf : leaves_of(number)) at::Tensor(leaf.view).copy_(leaf.parameter);
    }
  }
  show();  // frees the parameters' own memory
  if (common_) {
    group_.barrier();
    return;
  }
  for (Shard& shard : shards_) {
    if (shard.is_exact()) continue;
    group_.broadcast(shard.whole, /*root=*/0);
    if (shard.kept) continue;
    shard.part = shard.part.clone();
    count_as(MemoryKind::kWeights, shard.part);
  }
}

/// Offloads the parts that are gathered for every use.
void WeightShards::move_elsewhere() {
  for (Shard& shard : shards_) {
    if (shard.kept) continue;
    const at::Tensor holder = offload_->make(optim::Offload::Purpose::kParameters, {shard.part}).front();
    offload_->put(holder, shard.part);
    shard.part = holder;
  }
}

/// The values of the part, on the device that computes.
at::Tensor WeightShards::values_of(const Shard& shard) const {
  if (!shard.part.is_meta()) return shard.part;
  at::Tensor values = offload_->fetch(shard.part).to(offload_->device());
  count_as(MemoryKind::kWeights, values);
  return values;
}

/// Broadcasts the exact values once; each rank keeps its part of them.
void WeightShards::take_exact(std::size_t number) {
  const Shard& shard = shards_[number];
  at::Tensor exact = at::zeros({shard.whole.numel()}, shard.part.options());
  if (group_.rank() == 0) {
    for (const Leaf& leaf : leaves_of(number))
      tensor_in(exact, leaf.view.storage_offset() - shard.whole.storage_offset(), leaf.parameter.sizes())
          .copy_(leaf.parameter);
  }
  group_.broadcast(exact, /*root=*/0);
  at::Tensor(shard.part).copy_(exact.narrow(0, shard.part.numel() * group_.rank(), shard.part.numel()));
  if (common_) {
    place_in_whole(shard).copy_(shard.part);
  } else {
    at::Tensor(shard.whole).copy_(exact);
  }
}

void WeightShards::show() {
  const ReleasedParameterAccess access;
  for (const Leaf& leaf : leaves_) leaf.parameter.set_data(leaf.view);
}

at::Tensor WeightShards::piece(const ShardPiece& piece, at::IntArrayRef of_whole) const {
  std::vector<std::int64_t> sizes = of_whole.vec();
  if (piece.numel < c10::multiply_integers(of_whole)) {
    std::ranges::fill(sizes, 1);
    sizes.back() = piece.numel;
  }
  return tensor_in(shards_[piece.bucket].part, piece.place, sizes);
}

void WeightShards::check() const {
  for (std::size_t number = 0; number < shards_.size(); ++number) {
    const bool keeps_writes = common_ ? !shards_[number].is_exact() : is_inside(shards_[number]);
    for (const Leaf& leaf : leaves_of(number)) {
      const std::string& name = names_[numbers_[static_cast<std::size_t>(&leaf - leaves_.data())]];
      require(is_in_place(leaf.parameter, leaf.view) || is_in_place(leaf.parameter, leaf.released),
              "parameter '", name, "' has left the memory of its shards for another tensor, of type ",
              at::toString(leaf.parameter.scalar_type()),
              " (torch::load(module), module->to(), set_data()): ",
              "what the module computes with would never be trained; expected it as it was wrapped, of type ",
              at::toString(leaf.view.scalar_type()), "; ", kWriteAdvice);
      require(leaf.parameter.requires_grad() == leaf.learns, "parameter '", name,
              "' has requires_grad = ", leaf.parameter.requires_grad(), " and had ", leaf.learns,
              " when its weights were sharded, which decides what is reduced: freeze and unfreeze parameters "
              "before that; make the FullyShardedDataParallel or Pipeline, and the optimizer, again");
      require(keeps_writes || static_cast<std::int64_t>(leaf.parameter._version()) == leaf.version,
              "parameter '", name,
              "' of the module was written, and it is a copy, gathered or rounded, of what ",
              "is trained: the values would be lost; ", kWriteAdvice);
    }
  }
}

void WeightShards::gather() {
  if (gathered_ && current_) return;
  const at::NoGradGuard no_grad;
  if (common_) {
    for (const Shard& shard : shards_) {
      if (shard.rounded) place_in_whole(shard).copy_(shard.part);
    }
    pending_.push_back(group_.all_reduce_async(token_));
  } else {
    gather_parts();
  }
  gathered_ = current_ = true;
  // Memory that computations may read must not be written concurrently.
  if (!kept_.expired()) wait();
}

void WeightShards::gather_parts() {
  for (Shard& shard : shards_) {
    if (shard.kept && current_) continue;
    if (!shard.kept && !has_memory_) give_memory(shard.whole);
    if (shard.encoded()) {
      gather_encoded(shard);
      continue;
    }
    const at::Tensor mine = to_gather(shard);
    count(all_gather_bytes(group_, mine));
    pending_.push_back(group_.all_gather_async(shard.whole, mine));
  }
  has_memory_ = true;
}

void WeightShards::count(std::int64_t bytes) const {
  if (hook_) hook_->count(bytes);
}

std::int64_t WeightShards::bytes_of_message(const Shard& shard, int rank) const {
  std::int64_t bytes = 0;
  for (const ShardPiece& run : shard.runs[static_cast<std::size_t>(rank)])
    bytes += slot_bytes(*hook_->weights(), run.numel, {});
  return bytes;
}

/// All messages have the size of the longest.
void WeightShards::gather_encoded(Shard& shard) {
  std::int64_t bytes = 0;
  for (int rank = 0; rank < group_.size(); ++rank) bytes = std::max(bytes, bytes_of_message(shard, rank));
  const at::Tensor values = values_of(shard), mine = at::empty({bytes}, values.options().dtype(at::kByte));
  std::int64_t at = 0;
  for (const ShardPiece& run : shard.runs[static_cast<std::size_t>(group_.rank())]) {
    const at::Tensor slot = mine.narrow(0, at, slot_bytes(*hook_->weights(), run.numel, {}));
    write_slot(*hook_->weights(), values.narrow(0, run.place, run.numel), {}, true, slot);
    at += slot.numel();
  }
  shard.arriving = at::empty({mine.numel() * group_.size()}, mine.options());
  for (const at::Tensor& each : {mine, shard.arriving}) count_as(MemoryKind::kCommunication, each);
  count(all_gather_bytes(group_, mine));
  pending_.push_back(group_.all_gather_async(shard.arriving, mine));
}

void WeightShards::take_messages(Shard& shard) const {
  const at::NoGradGuard no_grad;
  const std::int64_t part = shard.whole.numel() / group_.size();
  const std::int64_t bytes = shard.arriving.numel() / group_.size();
  const bool is_plain = shard.whole.scalar_type() == at::kFloat;
  for (int rank = 0; rank < group_.size(); ++rank) {
    at::Tensor place = shard.whole.narrow(0, part * rank, part);
    const at::Tensor values = is_plain ? place : at::zeros({part}, place.options().dtype(at::kFloat));
    std::int64_t at = rank * bytes;
    for (const ShardPiece& run : shard.runs[static_cast<std::size_t>(rank)]) {
      const at::Tensor slot = shard.arriving.narrow(0, at, slot_bytes(*hook_->weights(), run.numel, {}));
      const at::Tensor of_run = values.narrow(0, run.place, run.numel);
      read_slot(*hook_->weights(), slot, of_run, names_[run.parameter]).show_in(of_run);
      at += slot.numel();
    }
    if (!is_plain) place.copy_(values);
  }
  shard.arriving.reset();
}

bool WeightShards::is_inside(const Shard& shard) const { return !shard.is_exact() && shard.kept; }

/// A part inside the whole is already at its place there.
at::Tensor WeightShards::to_gather(const Shard& shard) const {
  return shard.rounded ? values_of(shard).to(shard.whole.scalar_type()) : values_of(shard);
}

void WeightShards::wait() {
  if (pending_.empty()) return;
  const double began_s = now_s();
  for (comm::Pending& each : std::exchange(pending_, {})) each.wait();
  waited_s_ += now_s() - began_s;
  for (Shard& shard : shards_) {
    if (shard.arriving.defined()) take_messages(shard);
  }
  if (releases_) show();
}

void WeightShards::release() {
  if (!releases_ || !gathered_) return;
  wait();
  gathered_ = false;
  if (kept_.expired()) hide();
}

/// Whether this rank keeps memory does not change the gathers, which are the same on all ranks.
std::shared_ptr<void> WeightShards::keep() {
  if (!releases_) return nullptr;
  if (auto kept = kept_.lock()) return kept;
  const auto drop = [alive = std::weak_ptr<const void>(alive_)](WeightShards* shards) {
    if (!alive.expired() && !shards->gathered_) shards->hide();
  };
  std::shared_ptr<void> made(this, drop);
  kept_ = made;
  return made;
}

void WeightShards::hide() {
  const ReleasedParameterAccess access;
  for (std::size_t number = 0; number < shards_.size(); ++number) {
    if (shards_[number].kept) continue;
    for (const Leaf& leaf : leaves_of(number)) leaf.parameter.set_data(leaf.released);
    take_memory_back(shards_[number].whole);
  }
  has_memory_ = false;
}

std::shared_ptr<void> WeightShards::lend() {
  wait();
  if (has_memory_) return nullptr;
  for (const Shard& shard : shards_) {
    if (!shard.kept) give_memory(shard.whole);
  }
  has_memory_ = true;
  show();
  return {this, [](WeightShards* shards) { shards->hide(); }};
}

}  // namespace trireme::parallel
