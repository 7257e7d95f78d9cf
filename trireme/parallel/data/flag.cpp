#include "trireme/parallel/data/internal/flag.h"

#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>

#include <cmath>
#include <limits>

namespace trireme::parallel {

Flag Flag::is_finite(const at::Tensor& values) {
  if (!values.is_cpu()) return Flag(at::isfinite(values).all());
  // A sum is not finite if an addend is not. A sum of large numbers may also overflow; then each value is
  // checked.
  return std::isfinite(values.sum().item<float>()) || at::isfinite(values).all().item<bool>();
}

at::Tensor Flag::on(c10::Device device) const {
  return on_device_.defined() ? on_device_.to(device)
                              : at::full({}, value_, at::TensorOptions(at::kBool).device(device));
}

Flag Flag::operator&&(const Flag& other) const {
  if (is_known(false) || other.is_known(true)) return *this;
  if (is_known(true) || other.is_known(false)) return other;
  return Flag(on_device_.logical_and(other.on_device_));
}

Flag Flag::operator!() const { return on_device_.defined() ? Flag(on_device_.logical_not()) : Flag(!value_); }

void Flag::show_in(const at::Tensor& values) const {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  if (is_known(true)) return;
  is_known(false) ? at::Tensor(values).fill_(kNaN)
                  : at::Tensor(values).masked_fill_(on_device_.logical_not(), kNaN);
}

}  // namespace trireme::parallel
