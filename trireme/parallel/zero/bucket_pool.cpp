#include "trireme/parallel/zero/internal/bucket_pool.h"

#include <algorithm>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/parallel/counted_memory.h"

namespace trireme::parallel {
namespace {

bool is_kind_of(const at::Tensor& flat, const at::Tensor& like) {
  return flat.scalar_type() == like.scalar_type() && flat.device() == like.device();
}

BucketLimits limits_for(const ZeroOptions& zero, const std::vector<at::Tensor>& parameters, int num_ranks) {
  if (zero.keeps_gradients()) return {.at_a_time = BucketLimits::kAll};
  std::vector<std::int64_t> bytes;
  for (const at::Tensor& each : parameters) {
    if (each.requires_grad()) bytes.push_back(static_cast<std::int64_t>(each.nbytes()));
  }
  return bucket_limits(bytes, num_ranks);
}

}  // namespace

BucketPool::BucketPool(comm::Group group, const ZeroOptions& zero, const std::vector<at::Tensor>& parameters)
    : BucketPool(group, limits_for(zero, parameters, group.size())) {}

void BucketPool::expect(std::int64_t numel, const at::Tensor& like) {
  const auto known = std::ranges::find_if(expected_, [&](const Expected& each) {
    return each.kind.dtype() == like.dtype() && each.kind.device() == like.device();
  });
  if (known == expected_.end()) {
    expected_.push_back({like.options(), numel});
  } else {
    known->numel = std::max(known->numel, numel);
  }
}

/// If memory is reused between buckets, all of it has the size of the largest bucket.
std::int64_t BucketPool::numel_for(std::int64_t numel, const at::Tensor& like) const {
  if (keeps_all()) return numel;
  for (const auto& [kind, largest] : expected_) {
    if (kind.dtype() == like.dtype() && kind.device() == like.device()) numel = std::max(numel, largest);
  }
  return numel;
}

at::Tensor BucketPool::allocate(std::int64_t numel, const at::Tensor& like) const {
  at::Tensor flat = group_.allocate(numel, like.options().requires_grad(false));
  count_as(MemoryKind::kGradients, flat);
  return flat;
}

at::Tensor BucketPool::take(std::int64_t numel, const at::Tensor& like) {
  while (!reductions_.empty() && num_taken_ >= limits_.at_a_time) retire_oldest();
  // If a tensor still refers to this memory, it keeps it; the memory is not reused.
  std::erase_if(spares_, [](const at::Tensor& spare) { return spare.storage().use_count() > 1; });
  const auto fits = [&](const at::Tensor& spare) {
    return is_kind_of(spare, like) && spare.numel() >= numel;
  };
  auto smallest = spares_.end();
  for (auto spare = spares_.begin(); spare != spares_.end(); ++spare) {
    if (fits(*spare) && (smallest == spares_.end() || spare->numel() < smallest->numel())) smallest = spare;
  }
  ++num_taken_;
  if (smallest == spares_.end()) return allocate(numel_for(numel, like), like);
  at::Tensor flat = std::move(*smallest);
  spares_.erase(smallest);
  return flat;
}

void BucketPool::give_back(at::Tensor flat) {
  spares_.push_back(std::move(flat));
  --num_taken_;
}

void BucketPool::reduce(const void* owner, at::Tensor flat, std::function<void()> wait,
                        std::function<void()> done) {
  reductions_.push_back({owner, std::move(flat), std::move(wait), std::move(done)});
}

void BucketPool::retire_oldest() {
  Reduction oldest = std::move(reductions_.front());
  reductions_.pop_front();
  const double before = now_s();
  oldest.wait();
  waited_s_ += now_s() - before;
  if (!keeps_all()) give_back(std::move(oldest.flat));
  oldest.done();
}

void BucketPool::wait_for(const void* owner) {
  while (is_reducing(owner)) retire_oldest();
}

bool BucketPool::is_reducing(const void* owner) const {
  return std::ranges::any_of(reductions_, [&](const Reduction& each) { return each.owner == owner; });
}

void BucketPool::forget(const void* owner) {
  num_taken_ -= std::erase_if(reductions_, [&](const Reduction& each) { return each.owner == owner; });
}

}  // namespace trireme::parallel
