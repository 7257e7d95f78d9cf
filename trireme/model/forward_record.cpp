#include "trireme/model/forward_record.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/autocast_mode.h>

#include <optional>

#include "trireme/base/error.h"

namespace trireme::model {
namespace {

thread_local ForwardScope* innermost = nullptr;

std::vector<AutocastState> autocast_state() {
  std::vector<c10::DeviceType> devices = {c10::kCPU};
  const std::optional<c10::DeviceType> accelerator = at::accelerator::getAccelerator();
  if (accelerator && at::autocast::is_autocast_available(*accelerator)) devices.push_back(*accelerator);
  std::vector<AutocastState> states;
  for (const c10::DeviceType device : devices) {
    states.push_back({.device = device,
                      .enabled = at::autocast::is_autocast_enabled(device),
                      .dtype = at::autocast::get_autocast_dtype(device)});
  }
  return states;
}

void set_autocast(const std::vector<AutocastState>& states) {
  for (const AutocastState& state : states) {
    at::autocast::set_autocast_enabled(state.device, state.enabled);
    at::autocast::set_autocast_dtype(state.device, state.dtype);
  }
}

}  // namespace

ForwardScope::ForwardScope(ForwardRecord& record, Kind kind)
    : record_(record),
      kind_(kind),
      before_(innermost),
      outer_(kind == Kind::kRecording ? innermost : nullptr) {
  if (kind_ == Kind::kRecording) {
    record_.random_state_ = random_state();
    record_.autocast_ = autocast_state();
    record_.values_.clear();
  } else {
    set_random_state(record_.random_state_);
    set_autocast(record_.autocast_);
  }
  innermost = this;
}

ForwardScope::~ForwardScope() { innermost = before_; }

std::uint64_t ForwardScope::pass(std::uint64_t value) {
  if (outer_ != nullptr) value = outer_->pass(value);
  if (kind_ == Kind::kRecording) {
    record_.values_.push_back(value);
    return value;
  }
  require(next_ < record_.values_.size(), "a forward that runs again asks same_again() for number ", next_,
          ", and asked ", record_.values_.size(),
          " times when it ran first; it has to take the same way through its layers each time");
  return record_.values_[next_++];
}

std::uint64_t same_again(std::uint64_t value) {
  return innermost == nullptr ? value : innermost->pass(value);
}

ForwardRecord::Replaying::Replaying(ForwardRecord& record, const Tensors& buffers)
    : untouched_(buffers), autocast_before_(autocast_state()), scope_(record) {
  at::autocast::increment_nesting();
}

ForwardRecord::Replaying::~Replaying() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  set_autocast(autocast_before_);
}

}  // namespace trireme::model
