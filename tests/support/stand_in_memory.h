#pragma once
// Memory of the mock device, and copies that are made as late as those of a real device may be. Thread-safe.

#include <ATen/Context.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace trireme::test {

/// Address ranges that no code can read, and the actual bytes of each.
class HiddenMemory {
 public:
  void* take(std::size_t bytes) {
    const std::size_t range = rounded(bytes);
    void* address = ::mmap(nullptr, range, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(address != MAP_FAILED, "the stand-in device has no addresses left");
    const std::lock_guard lock(mutex_);
    blocks_[static_cast<std::byte*>(address)] = c10::GetDefaultCPUAllocator()->allocate(bytes);
    sizes_[static_cast<std::byte*>(address)] = range;
    return address;
  }

  void give_back(void* address) {
    const std::lock_guard lock(mutex_);
    auto* begin = static_cast<std::byte*>(address);
    ::munmap(address, sizes_.at(begin));
    sizes_.erase(begin);
    blocks_.erase(begin);
  }

  /// The location of the actual bytes of `address`.
  std::byte* behind(const void* address) {
    const std::lock_guard lock(mutex_);
    const auto* wanted = static_cast<const std::byte*>(address);
    const auto block = std::prev(blocks_.upper_bound(const_cast<std::byte*>(wanted)));
    return static_cast<std::byte*>(block->second.get()) + (wanted - block->first);
  }

  /// The first address of the range that contains `address`.
  const void* begin_of(const void* address) {
    const std::lock_guard lock(mutex_);
    const auto* wanted = static_cast<const std::byte*>(address);
    return std::prev(blocks_.upper_bound(const_cast<std::byte*>(wanted)))->first;
  }

 private:
  static std::size_t rounded(std::size_t bytes) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    return std::max(page, (bytes + page - 1) / page * page);
  }

  std::mutex mutex_;
  std::map<std::byte*, c10::DataPtr> blocks_;  ///< aligned like the CPU's tensors
  std::map<std::byte*, std::size_t> sizes_;
};

/// Non-blocking copies, in the order of one stream. Each is made as late as possible. The host gets copied
/// data when it waits for the device, or when something after it in the stream has been seen.
class LateCopies {
 public:
  void add_to_device(std::function<void()> copy) { add({.to_device = true, .run = std::move(copy)}); }
  void add_to_host(std::function<void()> copy) { add({.to_device = false, .run = std::move(copy)}); }
  /// The device does some work. All copies to it are made before.
  void work() {
    const std::lock_guard lock(mutex_);
    const auto last =
        std::find_if(copies_.rbegin(), copies_.rend(), [](const Copy& each) { return each.to_device; });
    run_first(static_cast<std::size_t>(copies_.rend() - last));
  }
  /// The host waits for the device.
  void finish() {
    const std::lock_guard lock(mutex_);
    run_first(copies_.size());
  }

 private:
  struct Copy {
    bool to_device;
    std::function<void()> run;
  };

  void add(Copy copy) {
    const std::lock_guard lock(mutex_);
    copies_.push_back(std::move(copy));
  }
  void run_first(std::size_t number) {
    for (; number > 0; --number) {
      copies_.front().run();
      copies_.pop_front();
    }
  }

  std::mutex mutex_;
  std::deque<Copy> copies_;
};

/// Bytes that are allocated on each device, as libtorch's allocators count them.
class AllocatedOnDevices {
 public:
  explicit AllocatedOnDevices(std::size_t num_devices) : stats_(num_devices) {}
  void add(const void* address, std::size_t bytes, c10::DeviceIndex device) {
    const std::lock_guard lock(mutex_);
    blocks_[address] = {bytes, device};
    of(device).increase(bytes);
  }
  void remove(const void* address) {
    const std::lock_guard lock(mutex_);
    const auto [bytes, device] = blocks_.extract(address).mapped();
    of(device).decrease(bytes);
  }
  c10::CachingAllocator::Stat on(c10::DeviceIndex device) {
    const std::lock_guard lock(mutex_);
    return of(device);
  }
  void reset_peak(c10::DeviceIndex device) {
    const std::lock_guard lock(mutex_);
    of(device).reset_peak();
  }

 private:
  c10::CachingAllocator::Stat& of(c10::DeviceIndex device) {
    return stats_.at(static_cast<std::size_t>(device));
  }

  std::mutex mutex_;
  std::map<const void*, std::pair<std::size_t, c10::DeviceIndex>> blocks_;
  std::vector<c10::CachingAllocator::Stat> stats_;
};

/// Pinned memory of the host, which a real device could read itself.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DataPtr taken = at::getCPUAllocator()->allocate(bytes);
    auto* begin = static_cast<std::byte*>(taken.get());
    const std::lock_guard lock(mutex_);
    if (bytes > 0) blocks_[begin] = {bytes, std::move(taken)};
    return {begin, begin, give_back, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return give_back; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  bool holds(const void* address) {
    const auto* wanted = static_cast<const std::byte*>(address);
    const std::lock_guard lock(mutex_);
    const auto behind = blocks_.upper_bound(const_cast<std::byte*>(wanted));
    return behind != blocks_.begin() && wanted < std::prev(behind)->first + std::prev(behind)->second.first;
  }
  static PinnedAllocator& one() {
    static auto* const kOne = new PinnedAllocator;  // tensors may be freed late
    return *kOne;
  }

 private:
  static void give_back(void* taken) {
    const std::lock_guard lock(one().mutex_);
    one().blocks_.erase(static_cast<std::byte*>(taken));
  }

  std::mutex mutex_;
  std::map<std::byte*, std::pair<std::size_t, c10::DataPtr>> blocks_;
};

}  // namespace trireme::test
