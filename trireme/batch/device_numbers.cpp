#include "trireme/batch/device_numbers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

namespace trireme::batch {
namespace {

std::vector<double> values_of(const at::Tensor& on_host) {
  const at::Tensor values = on_host.to(at::kDouble).contiguous();
  const auto* first = values.const_data_ptr<double>();
  return {first, first + values.numel()};
}

}  // namespace

struct DeviceNumbers::Copy {
  at::Tensor on_host;  ///< pinned during an asynchronous copy
  std::optional<c10::Event> arrived;
  std::vector<double> values;
};

DeviceNumbers::DeviceNumbers(const at::Tensor& numbers) {
  if (!numbers.defined()) return;
  const at::NoGradGuard no_grad;
  copy_ = std::make_shared<Copy>();
  const at::Tensor flat = numbers.detach().reshape({-1});
  if (flat.is_cpu()) {
    copy_->values = values_of(flat);
    return;
  }
  const c10::Device device = flat.device();
  copy_->on_host = at::empty(flat.sizes(), flat.options().device(c10::kCPU).pinned_memory(true));
  copy_->on_host.copy_(flat, /*non_blocking=*/true);
  copy_->arrived.emplace(device.type());
  copy_->arrived->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

const std::vector<double>& DeviceNumbers::read() const {
  static const std::vector<double> kNone;
  if (!copy_) return kNone;
  if (!copy_->arrived) return copy_->values;
  copy_->arrived->synchronize();
  copy_->values = values_of(copy_->on_host);
  copy_->arrived.reset();
  copy_->on_host.reset();
  return copy_->values;
}

}  // namespace trireme::batch
