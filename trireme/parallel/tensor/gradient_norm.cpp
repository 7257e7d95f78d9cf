#include "trireme/parallel/tensor/gradient_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <set>
#include <vector>

#include "trireme/model/parameter_box.h"
#include "trireme/optim/norms.h"

namespace trireme::parallel {
namespace {

at::Tensor sum_of_squares(const std::vector<at::Tensor>& gradients, const at::TensorOptions& options) {
  if (gradients.empty()) return at::zeros({}, options);
  std::vector<at::Tensor> norms = optim::norms_of(gradients);
  for (at::Tensor& norm : norms) norm = norm.to(at::kDouble);
  return at::stack(norms).square().sum();
}

}  // namespace

at::Tensor gradient_norm(const torch::nn::Module& model, comm::Group group) {
  const at::NoGradGuard no_grad;
  std::set<const at::TensorImpl*> counted;
  std::vector<at::Tensor> parts, replicated;
  at::TensorOptions options = at::kDouble;
  for (const model::ParameterBox& box : model::parameter_boxes(model)) {
    options = options.device(box.parameter.device());
    const bool is_new = counted.insert(box.parameter.unsafeGetTensorImpl()).second;
    if (is_new && box.parameter.grad().defined())
      (box.is_part ? parts : replicated).push_back(box.parameter.grad());
  }
  at::Tensor squares = sum_of_squares(parts, options);
  if (group.size() > 1) group.all_reduce(squares);
  return (squares + sum_of_squares(replicated, options)).sqrt();
}

}  // namespace trireme::parallel
