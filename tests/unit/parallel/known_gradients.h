#pragma once
// Parameters without a module, whose gradients are known numbers of each rank and step.

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/random.h"
#include "trireme/optim/optimizer.h"

namespace trireme::test {

/// Parameters that are used in a sum of products, so that their gradients are known.
struct Parameters {
  Parameters() {
    for (const auto& [name, sizes] : std::vector<std::pair<std::string, std::vector<std::int64_t>>>{
             {"bias", {60}}, {"small", {4, 5}}, {"conv", {24, 3, 5, 5}}, {"linear", {60, 100}}}) {
      tensors.emplace_back(name, at::zeros(sizes).requires_grad_());
    }
  }
  /// Gradients of a rank in a step: arbitrary numbers.
  static at::Tensor gradient(const std::string& name, at::IntArrayRef sizes, int rank, int step) {
    Random random(7, rank, step, Random::key_of(name));
    at::Tensor values = at::empty(sizes);
    for (float& value : std::span(values.data_ptr<float>(), static_cast<std::size_t>(values.numel())))
      value = (random.uniform() - 0.5F) * 8 * random.uniform();
    return values;
  }
  void backward(int rank, int step) const {
    at::Tensor loss = at::zeros({});
    for (const auto& [name, tensor] : tensors)
      loss = loss + (tensor * gradient(name, tensor.sizes(), rank, step)).sum();
    loss.backward();
  }
  optim::NamedTensors tensors;
};

}  // namespace trireme::test
