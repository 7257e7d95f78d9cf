#include "trireme/parallel/data/internal/gradient_buffer_allocator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <utility>

#include "trireme/parallel/data/gradient_hook.h"

namespace trireme::parallel {
namespace {

// Below this size a copy costs no more than the bookkeeping.
constexpr std::size_t kMinBytes = 16 << 10;
// More than any backward allocates. Bounds the recording of a step that never ends.
constexpr std::size_t kMaxAllocations = 1 << 16;

thread_local std::vector<std::weak_ptr<GradientBufferAllocator>> watching;
thread_local int pauses = 0;

/// References of libtorch to a gradient's memory when the post-accumulate hook runs. They depend on its
/// version.
std::size_t holders_of_a_gradient() {
  static const std::size_t kHolders = [] {
    const at::AutoGradMode enabled(true);
    const at::Tensor leaf = at::ones({1}).requires_grad_();
    std::size_t holders = 0;
    hook_gradient(leaf, "probe", [&] { holders = leaf.grad().storage().use_count(); });
    (leaf * 2).sum().backward();
    unhook_gradient(leaf);
    return holders;
  }();
  return kHolders;
}

bool in_backward() { return pauses == 0 && torch::autograd::get_current_node() != nullptr; }

}  // namespace

/// Keeps the leased memory as long as the tensor in it lives.
struct GradientBufferAllocator::Lease {
  at::Tensor memory;
};

class GradientBufferAllocator::Allocator final : public c10::Allocator {
 public:
  explicit Allocator(c10::Allocator* before) : before_(before) {}
  c10::DataPtr allocate(std::size_t bytes) override {
    if (watching.empty() || bytes < kMinBytes || !in_backward()) return before_->allocate(bytes);
    return allocate_watched(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return before_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  static void install() {
    static const bool kInstalled = [] {
      // Never destroyed: tensors may outlive all static objects.
      c10::SetCPUAllocator(new Allocator(c10::GetCPUAllocator()), /*priority=*/255);
      return true;
    }();
    static_cast<void>(kInstalled);
  }

 private:
  c10::DataPtr allocate_watched(std::size_t bytes) {
    const Pause pause;
    std::vector<std::shared_ptr<GradientBufferAllocator>> present;
    std::erase_if(watching, [&](const std::weak_ptr<GradientBufferAllocator>& each) {
      std::shared_ptr<GradientBufferAllocator> places = each.lock();
      if (!places || places->thread_ != std::this_thread::get_id()) return true;
      present.push_back(std::move(places));
      return false;
    });
    c10::DataPtr data;
    for (const auto& places : present) {
      data = places->lease_next(bytes);
      if (data) break;
    }
    if (!data) data = before_->allocate(bytes);
    for (const auto& places : present) places->note(bytes, data.get());
    return data;
  }

  c10::Allocator* const before_;
};

GradientBufferAllocator::Pause::Pause() { ++pauses; }
GradientBufferAllocator::Pause::~Pause() { --pauses; }

GradientBufferAllocator::GradientBufferAllocator(std::size_t num_parameters, MakeBuffer lease)
    : make_buffer_(std::move(lease)), leases_(num_parameters) {
  Allocator::install();
  holders_of_a_gradient();  // runs a backward, which is not possible inside another one
}

void GradientBufferAllocator::begin_step() {
  expected_ = std::exchange(made_, {});
  made_.reserve(expected_.size());
  as_expected_ = true;
}

void GradientBufferAllocator::start() {
  if (!lends_) return;
  if (thread_.exchange(std::this_thread::get_id()) == std::this_thread::get_id()) return;
  forget();
  watching.push_back(weak_from_this());
}

/// Another thread removes it from its list at its next allocation.
void GradientBufferAllocator::stop() {
  thread_ = std::thread::id();
  forget();
}

void GradientBufferAllocator::end_leasing() {
  lends_ = false;
  stop();
  expected_.clear();
  made_.clear();
}

void GradientBufferAllocator::forget() {
  std::erase_if(watching, [this](const auto& each) { return each.expired() || each.lock().get() == this; });
}

/// Empty if the next allocation of the step does not become a gradient, or if its place is in use.
c10::DataPtr GradientBufferAllocator::lease_next(std::size_t bytes) {
  const std::size_t next = made_.size();
  as_expected_ = as_expected_ && next < expected_.size() && expected_[next].bytes == bytes;
  if (!as_expected_ || !expected_[next].parameter) return {};
  return lease(*expected_[next].parameter, bytes);
}

c10::DataPtr GradientBufferAllocator::lease(std::size_t parameter, std::size_t bytes) {
  if (is_leased(parameter)) return {};
  const at::Tensor memory = make_buffer_(parameter);
  if (!memory.defined() || memory.nbytes() < bytes) return {};
  const auto lease = std::make_shared<Lease>(Lease{memory});
  leases_[parameter] = lease;
  return {memory.mutable_data_ptr(), new std::shared_ptr<Lease>(lease),
          [](void* held) { delete static_cast<std::shared_ptr<Lease>*>(held); }, at::kCPU};
}

void GradientBufferAllocator::note(std::size_t bytes, const void* data) {
  if (made_.size() < kMaxAllocations) made_.push_back({.bytes = bytes, .data = data});
}

void GradientBufferAllocator::arrived(std::size_t parameter, const at::Tensor& gradient) {
  if (gradient.layout() != at::kStrided || gradient.nbytes() < kMinBytes || !has_memory_alone(gradient))
    return;
  const void* data = gradient.const_data_ptr();
  // Freed memory may have been allocated again: the last allocation counts.
  const auto made =
      std::find_if(made_.rbegin(), made_.rend(), [&](const Allocation& each) { return each.data == data; });
  if (made != made_.rend()) made->parameter = parameter;
}

bool GradientBufferAllocator::is_leased(std::size_t parameter) const { return !leases_[parameter].expired(); }

bool has_memory_alone(const at::Tensor& gradient) {
  return static_cast<std::size_t>(gradient.storage().use_count()) <= holders_of_a_gradient();
}

}  // namespace trireme::parallel
