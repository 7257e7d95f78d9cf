#include "trireme/parallel/counted_memory.h"

#include <c10/core/CPUAllocator.h>

#include "trireme/base/large_blocks.h"
#include "trireme/parallel/device_memory.h"

namespace trireme::parallel {
namespace {

class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* before) : before_(before) { behind = before->raw_deleter(); }

  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DataPtr data = before_->allocate(bytes);
    // Memory with another deleter has an owner that counts it itself. Small blocks are not counted.
    if (bytes >= MemoryLedger::kMinBytes && data.compare_exchange_deleter(behind, &give_back))
      MemoryLedger::of_process().add(data.get(), bytes);
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void give_back(void* memory) {
    MemoryLedger::of_process().remove(memory);
    behind(memory);
  }

  inline static c10::DeleterFnPtr behind = nullptr;
  c10::Allocator* const before_;
};

}  // namespace

void count_allocations() {
  static const bool kInstalled = [] {
    LargeBlocks::of_process().count();  // their allocator may be installed in front of this one
    c10::SetCPUAllocator(new CountingAllocator(c10::GetCPUAllocator()), /*priority=*/255);
    return true;
  }();
  static_cast<void>(kInstalled);
}

void count_as(MemoryKind kind, const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.is_meta()) return;
  if (!tensor.is_cpu()) return DeviceMemory::of_process().name(kind, tensor);
  if (tensor.storage().nbytes() == 0) return;  // a released parameter has no memory
  const void* begin = tensor.storage().data();
  if (begin != nullptr) MemoryLedger::of_process().name(begin, kind);
}

}  // namespace trireme::parallel
