#pragma once
// A condition that the host has at once, or that is a number on a device, for which the host does not wait:
// whether a vector is finite. Tensors of a device are changed by selection, so a step reads nothing back for
// it. One thread.

#include <ATen/core/Tensor.h>
#include <ATen/ops/where.h>

namespace trireme::parallel {

class Flag {
 public:
  Flag(bool value = true) : value_(value) {}  // NOLINT(google-explicit-constructor): a bool is one
  /// A bool without dims, on a device.
  explicit Flag(at::Tensor on_device) : on_device_(std::move(on_device)) {}
  /// Whether all of `values` are finite. On the CPU the host has the value.
  static Flag is_finite(const at::Tensor& values);

  /// False where only the device has the value.
  bool is_known(bool value) const { return !on_device_.defined() && value_ == value; }
  Flag operator&&(const Flag& other) const;
  Flag operator!() const;

  /// A bool on that device, without dims.
  at::Tensor on(c10::Device device) const;
  /// Calls `change(tensor)`, which works in place, where this holds. On a device it works on a copy, which is
  /// taken over where this holds: `tensor` is read and written once more.
  template <class Change>
  void change(const at::Tensor& tensor, const Change& change) const {
    if (is_known(false)) return;
    if (is_known(true)) return change(at::Tensor(tensor));
    const at::Tensor changed = tensor.clone();
    change(changed);
    at::Tensor(tensor).copy_(at::where(on_device_, changed, tensor));
  }
  /// `values` become NaN where this does not hold.
  void show_in(const at::Tensor& values) const;

 private:
  bool value_ = true;
  at::Tensor on_device_;  ///< undefined: the host has the value
};

}  // namespace trireme::parallel
