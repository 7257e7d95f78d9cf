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
  explicit GradientHook(std::function<void()> on_gradient) : on_gradient_(std::move(on_gradient)) {}
  void operator()(const torch::autograd::Variable&) override { on_gradient_(); }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}
  void apply_with_saved(torch::autograd::Variable&, torch::dynamo::autograd::SwapSavedVariables&) override {}

 private:
  std::function<void()> on_gradient_;
};

}  // namespace

void hook_gradient(const at::Tensor& parameter, const std::string& name, std::function<void()> on_gradient) {
  require(torch::autograd::impl::post_acc_grad_hooks(parameter) == nullptr, "parameter '", name,
          "' already has a hook on its gradient: is the module wrapped twice?");
  torch::autograd::impl::set_post_acc_grad_hooks(parameter,
                                                 std::make_unique<GradientHook>(std::move(on_gradient)));
}

void unhook_gradient(const at::Tensor& parameter) {
  torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
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
