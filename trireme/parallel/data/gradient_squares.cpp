#include "trireme/parallel/data/gradient_squares.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

namespace trireme::parallel {
namespace {

/// Independent lanes, which compilers vectorize. f32 within a block that fits the L1 cache, f64 across
/// blocks.
double sum_of_block(const float* values, std::int64_t count) {
  constexpr std::size_t kLanes = 32;
  std::array<float, kLanes> sums{};
  std::int64_t i = 0;
  for (; i + static_cast<std::int64_t>(kLanes) <= count; i += static_cast<std::int64_t>(kLanes)) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += values[i + lane] * values[i + lane];
  }
  double sum = 0;
  for (const float lane : sums) sum += lane;
  for (; i < count; ++i) sum += static_cast<double>(values[i]) * values[i];
  if (std::isfinite(sum)) return sum;
  sum = 0;  // the squares overflow f32
  for (i = 0; i < count; ++i) sum += static_cast<double>(values[i]) * values[i];
  return sum;
}

double sum_of_values(const float* values, std::int64_t count) {
  constexpr std::int64_t kBlock = 4096;
  double sum = 0;
  for (std::int64_t i = 0; i < count; i += kBlock)
    sum += sum_of_block(values + i, std::min(kBlock, count - i));
  return sum;
}

at::Tensor square_on_device(const at::Tensor& tensor) {
  return at::linalg_vector_norm(tensor, 2, c10::nullopt, /*keepdim=*/false, at::kDouble).square();
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.layout() == at::kStrided &&
         tensor.is_non_overlapping_and_dense();
}

at::Tensor dense(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided ? tensor : tensor.coalesce().values();
}

}  // namespace

double sum_of_squares(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor values = dense(tensor.detach());
  if (is_plain(values)) return sum_of_values(values.const_data_ptr<float>(), values.numel());
  return square_on_device(values).item<double>();
}

struct GradientSquares::Sum {
  bool active = false;
  double on_host = 0;
  at::Tensor on_device;  ///< undefined: no gradient on a device

  void add(const at::Tensor& gradient) {
    // A pass that accumulates no gradients, such as the first part of a split backward, is not counted: its
    // gradients come again.
    const auto* asked = torch::autograd::get_current_graph_task_exec_info();
    if (!active || !gradient.defined() || (asked != nullptr && !asked->empty())) return;
    if (gradient.is_cpu()) {
      on_host += sum_of_squares(gradient);
      return;
    }
    const at::NoGradGuard no_grad;
    const at::Tensor square = square_on_device(dense(gradient.detach()));
    on_device = on_device.defined() ? on_device + square : square;
  }
};

GradientSquares::GradientSquares(const optim::NamedTensors& parameters) : sum_(std::make_shared<Sum>()) {
  std::set<const void*> seen;
  for (const auto& [name, parameter] : parameters) {
    if (!parameter.requires_grad() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    hooks_.push_back({parameter, parameter.register_hook(
                                     [sum = sum_](const at::Tensor& gradient) { sum->add(gradient); })});
  }
}

GradientSquares::~GradientSquares() {
  for (const Hook& hook : hooks_) hook.parameter.remove_hook(hook.number);
}

void GradientSquares::begin() {
  *sum_ = {};
  sum_->active = true;
}

UnreadSum GradientSquares::take() {
  UnreadSum sum(sum_->on_host, sum_->on_device);
  *sum_ = {};
  return sum;
}

}  // namespace trireme::parallel
