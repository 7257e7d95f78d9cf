#include "trireme/wire/buffer_pool.h"

#include <bit>

namespace trireme::wire {
namespace {

constexpr std::size_t kMinPooledBytes = 64 << 10;

}  // namespace

std::shared_ptr<BufferPool> BufferPool::create(std::size_t max_kept_bytes) {
  return std::shared_ptr<BufferPool>(new BufferPool(max_kept_bytes));
}

FreshBuffer BufferPool::take(std::size_t bytes) {
  if (bytes < kMinPooledBytes) {
    auto owner = std::make_shared_for_overwrite<std::byte[]>(bytes);
    std::byte* first = owner.get();
    return {.owner = {std::move(owner), first}, .bytes = {first, bytes}};
  }
  const std::size_t size = std::bit_ceil(bytes);
  std::unique_ptr<std::byte[]> memory;
  {
    const std::lock_guard lock(mutex_);
    const auto found = kept_.find(size);
    if (found != kept_.end() && !found->second.empty()) {
      memory = std::move(found->second.back());
      found->second.pop_back();
      kept_bytes_ -= size;
    }
  }
  if (!memory) memory = std::make_unique_for_overwrite<std::byte[]>(size);
  std::byte* first = memory.get();
  // The deleter owns the memory, so that it is freed even if the pool no longer exists.
  auto owner = std::shared_ptr<std::byte>(
      first, [pool = weak_from_this(), size,
              held = std::shared_ptr<std::unique_ptr<std::byte[]>>(new auto(std::move(memory)))](std::byte*) {
        if (const auto alive = pool.lock()) alive->give_back(std::move(*held), size);
      });
  return {.owner = std::move(owner), .bytes = {first, bytes}};
}

std::size_t BufferPool::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  return kept_bytes_;
}

void BufferPool::give_back(std::unique_ptr<std::byte[]> memory, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (kept_bytes_ + bytes > max_kept_bytes_) return;
  kept_[bytes].push_back(std::move(memory));
  kept_bytes_ += bytes;
}

}  // namespace trireme::wire
