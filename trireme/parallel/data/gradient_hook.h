#pragma once
// Being told when the gradient of a parameter has been accumulated: one hook per parameter.

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace trireme::parallel {

/// Calls `on_gradient` from the thread that accumulates, behind every accumulation. Throws InvalidArgument:
/// the parameter has a hook.
void hook_gradient(const at::Tensor& parameter, const std::string& name, std::function<void()> on_gradient);
void unhook_gradient(const at::Tensor& parameter);

/// `from` has the sizes of `to`. A plain copy of memory costs no dispatch, and for large tensors no reading
/// of what is overwritten.
void copy_gradient(const at::Tensor& to, const at::Tensor& from);

}  // namespace trireme::parallel
