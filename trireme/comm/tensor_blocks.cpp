#include "trireme/comm/tensor_blocks.h"

#include <c10/core/CPUAllocator.h>

#include <cstdint>

#include "trireme/base/large_blocks.h"

namespace trireme::comm {
namespace {

/// The smallest page size. Other blocks seldom begin at a page.
constexpr std::uintptr_t kPageBytes = 4096;

class BlockAllocator final : public c10::Allocator {
 public:
  explicit BlockAllocator(c10::Allocator* before) : before_(before) { behind = before->raw_deleter(); }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes < LargeBlocks::kMinBytes) return smaller(bytes);
    void* const memory = LargeBlocks::of_process().allocate(bytes);
    if (memory == nullptr) return smaller(bytes);         // its error has the number of missing bytes
    c10::profiledCPUMemoryReporter().New(memory, bytes);  // as libtorch's own allocator does
    return {memory, memory, &give_back, at::kCPU};
  }
  /// Frees both kinds of blocks.
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  /// Both kinds of blocks have one deleter, raw_deleter(): wrapping allocators compare with it.
  c10::DataPtr smaller(std::size_t bytes) {
    c10::DataPtr data = before_->allocate(bytes);
    static_cast<void>(data.compare_exchange_deleter(behind, &give_back));  // else the owner frees it
    return data;
  }

  static void give_back(void* memory) {
    const bool may_be_large = reinterpret_cast<std::uintptr_t>(memory) % kPageBytes == 0;
    if (!may_be_large || !free_large(memory)) behind(memory);
  }

  /// False: a block of another allocator. The profiler is notified before another thread may get the block.
  static bool free_large(void* memory) {
    if (!LargeBlocks::of_process().has(memory)) return false;
    c10::profiledCPUMemoryReporter().Delete(memory);
    return LargeBlocks::of_process().free(memory);
  }

  inline static c10::DeleterFnPtr behind = nullptr;
  c10::Allocator* const before_;
};

}  // namespace

void keep_tensor_blocks() {
  static const bool kInstalled = [] {
    // Never destroyed: tensors may outlive all static objects.
    c10::SetCPUAllocator(new BlockAllocator(c10::GetCPUAllocator()), /*priority=*/255);
    return true;
  }();
  static_cast<void>(kInstalled);
}

}  // namespace trireme::comm
