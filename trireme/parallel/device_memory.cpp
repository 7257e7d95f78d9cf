#include "trireme/parallel/device_memory.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <optional>

namespace trireme::parallel {
namespace {

/// Null if the allocator keeps no statistics, or is not initialized.
c10::DeviceAllocator* allocator_of(c10::Device device) {
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  return allocator != nullptr && allocator->initialized() ? allocator : nullptr;
}

/// Current and peak allocated bytes of all its pools.
std::optional<c10::CachingAllocator::Stat> allocated_on(c10::Device device) {
  c10::DeviceAllocator* allocator = allocator_of(device);
  if (allocator == nullptr) return {};
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return allocator->getDeviceStats(device.index()).allocated_bytes.at(kAll);
}

MemoryUse with_rest(MemoryUse named, std::int64_t total) {
  named[MemoryKind::kActivations] += std::max<std::int64_t>(0, total - named.total());
  return named;
}

}  // namespace

DeviceMemory& DeviceMemory::of_process() {
  static auto* const memory = new DeviceMemory;  // never destroyed: tensors may be named at process exit
  return *memory;
}

void DeviceMemory::name(MemoryKind kind, const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  const std::lock_guard lock(mutex_);
  named_.insert_or_assign(storage.unsafeGetStorageImpl(), Named{storage.getWeakStorageImpl(), kind});
  if (named_.size() >= forget_at_) forget_freed();
}

void DeviceMemory::forget_freed() {
  std::erase_if(named_, [](const auto& entry) { return entry.second.storage.expired(); });
  forget_at_ = std::max<std::size_t>(64, 2 * named_.size());
}

MemoryUse DeviceMemory::named_on(c10::Device device) const {
  MemoryUse use;
  const std::lock_guard lock(mutex_);
  for (const auto& [address, named] : named_) {
    const c10::intrusive_ptr<c10::StorageImpl> storage = named.storage.lock();
    if (storage && storage->device() == device)
      use[named.kind] += static_cast<std::int64_t>(storage->nbytes());
  }
  return use;
}

MemoryUse DeviceMemory::now(c10::Device device) const {
  const auto allocated = allocated_on(device);
  return allocated ? with_rest(named_on(device), allocated->current) : named_on(device);
}

MemoryUse DeviceMemory::at_peak(c10::Device device) const {
  const auto allocated = allocated_on(device);
  return allocated ? with_rest(named_on(device), allocated->peak) : named_on(device);
}

void DeviceMemory::reset_peak(c10::Device device) {
  if (c10::DeviceAllocator* allocator = allocator_of(device)) allocator->resetPeakStats(device.index());
}

}  // namespace trireme::parallel
