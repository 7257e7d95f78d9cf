#include "trireme/base/memory_ledger.h"

#include <numeric>

namespace trireme {

const char* name_of(MemoryKind kind) {
  constexpr std::array<const char*, kNumMemoryKinds> kNames = {"activations", "weights", "gradients",
                                                               "optimizer", "communication"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::int64_t MemoryUse::total() const { return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}); }

MemoryLedger& MemoryLedger::of_process() {
  static auto* const ledger = new MemoryLedger;  // blocks may be freed after all static objects are destroyed
  return *ledger;
}

void MemoryLedger::add(const void* address, std::size_t bytes, MemoryKind kind) {
  if (bytes < kMinBytes) return;
  const std::lock_guard lock(mutex_);
  const auto [block, is_new] = blocks_.try_emplace(address, Block{bytes, kind});
  if (!is_new) {  // reported by two allocators, one after the other
    now_[block->second.kind] -= static_cast<std::int64_t>(block->second.bytes);
    total_ -= static_cast<std::int64_t>(block->second.bytes);
    block->second = {bytes, kind};
  }
  now_[kind] += static_cast<std::int64_t>(bytes);
  total_ += static_cast<std::int64_t>(bytes);
  if (total_ <= peak_) return;
  peak_ = total_;
  at_peak_ = now_;
}

void MemoryLedger::remove(const void* address) {
  const std::lock_guard lock(mutex_);
  const auto block = blocks_.find(address);
  if (block == blocks_.end()) return;
  now_[block->second.kind] -= static_cast<std::int64_t>(block->second.bytes);
  total_ -= static_cast<std::int64_t>(block->second.bytes);
  blocks_.erase(block);
}

void MemoryLedger::name(const void* address, MemoryKind kind) {
  const std::lock_guard lock(mutex_);
  const auto block = blocks_.find(address);
  if (block == blocks_.end()) return;
  const auto bytes = static_cast<std::int64_t>(block->second.bytes);
  now_[block->second.kind] -= bytes;
  now_[kind] += bytes;
  block->second.kind = kind;
}

MemoryUse MemoryLedger::now() const {
  const std::lock_guard lock(mutex_);
  return now_;
}

MemoryUse MemoryLedger::at_peak() const {
  const std::lock_guard lock(mutex_);
  return at_peak_;
}

void MemoryLedger::reset_peak() {
  const std::lock_guard lock(mutex_);
  at_peak_ = now_;
  peak_ = total_;
}

}  // namespace trireme
