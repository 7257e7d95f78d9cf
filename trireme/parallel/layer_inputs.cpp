#include "trireme/parallel/internal/layer_inputs.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

namespace trireme::parallel {
namespace {

struct Entry : torch::autograd::Function<Entry> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& input) {
    return input.detach();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& gradients) {
    return gradients;
  }
};

}  // namespace

at::Tensor entered(const at::Tensor& input) {
  return at::GradMode::is_enabled() && input.requires_grad() ? Entry::apply(input) : input;
}

std::vector<std::int64_t> versions_of(const Fields& tensors) {
  std::vector<std::int64_t> versions;
  for (const auto& [name, tensor] : tensors)
    versions.push_back(tensor.is_inference() ? 0 : static_cast<std::int64_t>(tensor._version()));
  return versions;
}

}  // namespace trireme::parallel
