#include "trireme/parallel/zero/internal/gradient_places.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <utility>

namespace trireme::parallel {
namespace {

// Below it a copy costs no more than the book-keeping.
constexpr std::size_t kLeastBytes = 16 << 10;

thread_local GradientPlaces* active = nullptr;

}  // namespace

/// Keeps the memory that was lent until the tensor in it is gone.
struct GradientPlaces::Loan {
  at::Tensor memory;
};

class GradientPlaces::Allocator final : public c10::Allocator {
 public:
  explicit Allocator(c10::Allocator* before) : before_(before) {}
  c10::DataPtr allocate(std::size_t bytes) override {
    return active != nullptr && bytes >= kLeastBytes ? active->allocate(bytes) : before_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return before_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  c10::Allocator* before() const { return before_; }

  static Allocator& installed() {
    static Allocator* const allocator = [] {
      auto* wrapped = new Allocator(c10::GetCPUAllocator());  // tensors may outlive everything
      c10::SetCPUAllocator(wrapped, /*priority=*/255);
      return wrapped;
    }();
    return *allocator;
  }

 private:
  c10::Allocator* const before_;
};

GradientPlaces::GradientPlaces(std::size_t num_parameters, Lend lend)
    : lend_(std::move(lend)), loans_(num_parameters) {
  Allocator::installed();
}

GradientPlaces::~GradientPlaces() { stop(); }

void GradientPlaces::begin_step() {
  stop();
  expected_ = std::exchange(made_, {});
  as_expected_ = true;
}

void GradientPlaces::start() { active = this; }

void GradientPlaces::stop() {
  if (active == this) active = nullptr;
}

c10::DataPtr GradientPlaces::allocate(std::size_t bytes) {
  const std::size_t next = made_.size();
  as_expected_ = as_expected_ && next < expected_.size() && expected_[next].bytes == bytes;
  c10::DataPtr data;
  if (as_expected_ && expected_[next].parameter) data = lend(*expected_[next].parameter, bytes);
  if (!data) data = Allocator::installed().before()->allocate(bytes);
  made_.push_back({.bytes = bytes, .data = data.get()});
  return data;
}

/// Empty where that is not possible.
c10::DataPtr GradientPlaces::lend(std::size_t parameter, std::size_t bytes) {
  if (is_lent(parameter)) return {};
  stop();  // what lending allocates is no part of the backward
  const at::Tensor memory = lend_(parameter);
  start();
  if (!memory.defined() || memory.nbytes() < bytes) return {};
  const auto loan = std::make_shared<Loan>(Loan{memory});
  loans_[parameter] = loan;
  return {memory.mutable_data_ptr(), new std::shared_ptr<Loan>(loan),
          [](void* held) { delete static_cast<std::shared_ptr<Loan>*>(held); }, at::kCPU};
}

void GradientPlaces::arrived(std::size_t parameter, const at::Tensor& gradient) {
  const void* data = gradient.const_data_ptr();
  // Memory that was given back may have been allocated again: the last one counts.
  const auto made = std::find_if(made_.rbegin(), made_.rend(),
                                 [&](const Allocation& allocation) { return allocation.data == data; });
  if (made != made_.rend()) made->parameter = parameter;
}

bool GradientPlaces::is_lent(std::size_t parameter) const { return !loans_[parameter].expired(); }

}  // namespace trireme::parallel
