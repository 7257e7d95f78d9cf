#pragma once
// Checks of the operators that the mock device runs, and walks over their arguments.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <optional>
#include <string>

namespace trireme::test {

/// A device computes with tensors on it, and with numbers (tensors without dims) of the host. Only indices
/// may be on another device.
inline void check_one_device(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const std::string& name = op.schema().name();
  if (name.starts_with("aten::index")) return;
  std::optional<c10::Device> first;
  const auto check = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || (tensor.is_cpu() && tensor.dim() == 0)) return;
    TORCH_CHECK(first.value_or(tensor.device()) == tensor.device(), "the stand-in device cannot compute ",
                name, " of tensors on ", *first, " and ", tensor.device(), ": one was not copied");
    first = tensor.device();
  };
  const std::size_t begin = stack.size() - op.schema().arguments().size();
  for (std::size_t i = begin; i < stack.size(); ++i) {
    if (stack[i].isTensor()) check(stack[i].toTensor());
    if (!stack[i].isTensorList()) continue;
    for (const at::Tensor& tensor : stack[i].toTensorList()) check(tensor);
  }
}

inline void for_each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& see) {
  if (value.isTensor()) see(value.toTensor());
  if (!value.isTensorList()) return;
  for (const at::Tensor& tensor : value.toTensorList()) see(tensor);
}

}  // namespace trireme::test
