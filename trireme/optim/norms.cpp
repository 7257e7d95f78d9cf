#include "trireme/optim/norms.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <algorithm>

namespace trireme::optim {
namespace {

at::Tensor in_f64(const at::Tensor& tensor) {
  return at::linalg_vector_norm(tensor, 2, c10::nullopt, /*keepdim=*/false, at::kDouble);
}

/// `found`, or the result of `wide` if `found` is not finite. Only on the CPU is reading `found` free.
template <class Wide>
at::Tensor number_of(const at::Tensor& found, const Wide& wide) {
  if (!found.is_cpu()) return at::where(at::isfinite(found), found, wide());
  return at::isfinite(found).item<bool>() ? found : wide();
}

}  // namespace

std::vector<at::Tensor> norms_of(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return {};
  const at::ScalarType type = tensors.front().scalar_type(), kept = at::toOpMathType(type);
  const bool alike =
      std::ranges::all_of(tensors, [&](const at::Tensor& each) { return each.scalar_type() == type; });
  std::vector<at::Tensor> norms;
  if (!alike) {
    for (const at::Tensor& each : tensors) norms.push_back(norms_of({each}).front());
    return norms;
  }
  norms = kept == type ? at::_foreach_norm(tensors) : at::_foreach_norm(tensors, 2, kept);
  for (std::size_t i = 0; i < norms.size(); ++i)
    norms[i] = number_of(norms[i], [&] { return in_f64(tensors[i]).to(kept); });
  return norms;
}

double sum_of_squared_norms(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return 0;
  std::vector<at::Tensor> norms = norms_of(tensors);
  for (at::Tensor& norm : norms) norm = norm.to(at::kDouble);
  return at::stack(norms).square().sum().item<double>();
}

at::Tensor norm_of_norms(const at::Tensor& norms) {
  return number_of(at::linalg_vector_norm(norms, 2).to(at::kDouble), [&] { return in_f64(norms); });
}

}  // namespace trireme::optim
