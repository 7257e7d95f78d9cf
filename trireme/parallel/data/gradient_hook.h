#pragma once
// Notification when the gradient of a parameter has been accumulated: one hook per parameter.

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>

namespace trireme::parallel {

/// Which hook it is.
using HookName = std::weak_ptr<const void>;

/// Calls `on_gradient` from the thread that accumulates, after every accumulation. Throws InvalidArgument:
/// the parameter has a hook.
HookName hook_gradient(const at::Tensor& parameter, const std::string& name,
                       std::function<void()> on_gradient);
/// The same for a parameter that needs no gradient yet: the hook yields to one of hook_gradient(), before or
/// afterwards. Expired where another hook is there.
HookName hook_gradient_if_free(const at::Tensor& parameter, std::function<void()> on_gradient);
/// From now on the hook yields, or no longer does. False: it is not there any more.
bool let_hook_yield(const at::Tensor& parameter, const HookName& hook, bool yields);
void unhook_gradient(const at::Tensor& parameter);
/// Where `hook` is still there.
void unhook_gradient(const at::Tensor& parameter, const HookName& hook);

/// `from` has the sizes of `to`. A plain copy of memory costs no dispatch, and for large tensors it does not
/// read the overwritten memory.
void copy_gradient(const at::Tensor& to, const at::Tensor& from);

}  // namespace trireme::parallel
