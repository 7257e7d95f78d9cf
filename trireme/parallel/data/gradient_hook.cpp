#include "trireme/parallel/data/gradient_hook.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <cstring>
#include <memory>
#include <utility>

#include "trireme/base/error.h"

namespace trireme::parallel {
namespace {

class GradientHook : public torch::autograd::PostAccumulateGradHook {
 public:
  GradientHook(std::function<void()> on_gradient, bool yields)
      : on_gradient_(std::move(on_gradient)), yields_(yields) {}
  void operator()(const torch::autograd::Variable&) override { on_gradient_(); }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}
  void apply_with_saved(torch::autograd::Variable&, torch::dynamo::autograd::SwapSavedVariables&) override {}
  bool yields() const { return yields_; }
  void let_yield(bool yields) { yields_ = yields; }
  const std::shared_ptr<const void>& name() const { return name_; }

 private:
  const std::function<void()> on_gradient_;
  bool yields_;
  const std::shared_ptr<const void> name_ = std::make_shared<char>();
};

/// Null if there is no hook, or one of another owner.
GradientHook* hook_of(const at::Tensor& parameter) {
  return dynamic_cast<GradientHook*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get());
}

/// Null if that hook was removed.
GradientHook* hook_of(const at::Tensor& parameter, const HookName& name) {
  GradientHook* present = hook_of(parameter);
  return present != nullptr && present->name() == name.lock() ? present : nullptr;
}

HookName set_hook(const at::Tensor& parameter, std::function<void()> on_gradient, bool yields) {
  auto hook = std::make_unique<GradientHook>(std::move(on_gradient), yields);
  const HookName name = hook->name();
  torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::move(hook));
  return name;
}

bool has_hook(const at::Tensor& parameter) {
  return torch::autograd::impl::post_acc_grad_hooks(parameter) != nullptr;
}

}  // namespace

HookName hook_gradient(const at::Tensor& parameter, const std::string& name,
                       std::function<void()> on_gradient) {
  const GradientHook* present = hook_of(parameter);
  require(!has_hook(parameter) || (present != nullptr && present->yields()), "parameter '", name,
          "' already has a hook on its gradient: is the module wrapped twice?");
  return set_hook(parameter, std::move(on_gradient), /*yields=*/false);
}

HookName hook_gradient_if_free(const at::Tensor& parameter, std::function<void()> on_gradient) {
  return has_hook(parameter) ? HookName() : set_hook(parameter, std::move(on_gradient), /*yields=*/true);
}

bool let_hook_yield(const at::Tensor& parameter, const HookName& hook, bool yields) {
  GradientHook* present = hook_of(parameter, hook);
  if (present != nullptr) present->let_yield(yields);
  return present != nullptr;
}

void unhook_gradient(const at::Tensor& parameter) {
  torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
}

void unhook_gradient(const at::Tensor& parameter, const HookName& hook) {
  if (hook_of(parameter, hook) != nullptr) unhook_gradient(parameter);
}

void copy_gradient(const at::Tensor& to, const at::Tensor& from) {
  if (from.is_cpu() && to.is_cpu() && from.scalar_type() == to.scalar_type() &&
      from.layout() == at::kStrided && from.strides() == to.strides() && to.is_non_overlapping_and_dense() &&
      at::get_num_threads() == 1) {
    if (from.const_data_ptr() != to.const_data_ptr())
      std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
    return;
  }
  to.copy_(from);
}

}  // namespace trireme::parallel
