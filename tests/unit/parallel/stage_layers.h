#pragma once
// Layers of modules and functions for tests of pipeline stages, with the same values every time.

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/parallel/small_models.h"
#include "trireme/base/text.h"
#include "trireme/model/layer.h"

namespace trireme::test {

using Tensors = std::vector<at::Tensor>;

struct Module : torch::nn::Module {
  std::function<at::Tensor(const at::Tensor&)> function;
  at::Tensor forward(const at::Tensor& input) { return function(input); }
};

inline model::Layer layer_of(const std::shared_ptr<Module>& module) {
  fill_parameters(*module);
  return model::make_layer(*module, "layer", {module},
                           [module](const at::Tensor& x) { return module->forward(x); });
}

/// A module with a single child `inner`.
template <class Inner>
model::Layer one(Inner inner) {
  const auto module = std::make_shared<Module>();
  module->register_module("inner", inner);
  module->function = [inner](const at::Tensor& x) mutable { return inner->forward(x); };
  return layer_of(module);
}

inline std::function<at::Tensor(int)> values(std::vector<std::int64_t> shape) {
  return [shape = std::move(shape)](int microbatch) { return numbers(shape, 100 + microbatch); };
}

inline at::Tensor tokens(int microbatch) { return (at::arange(2 * 8).reshape({2, 8}) * 7 + microbatch) % 20; }

/// The forward of a user-defined module with parameters, as a layer.
struct Own {
  std::function<at::Tensor(const at::Tensor& x, const std::vector<at::Tensor>& parameters)> forward;
  std::vector<std::vector<std::int64_t>> shapes;
  std::vector<model::Layer> operator()() const {
    const auto module = std::make_shared<Module>();
    std::vector<at::Tensor> parameters;
    for (std::size_t i = 0; i < shapes.size(); ++i)
      parameters.push_back(module->register_parameter(text("p", i), at::zeros(shapes[i])));
    module->function = [parameters, forward = forward](const at::Tensor& x) {
      return forward(x, parameters);
    };
    return {layer_of(module)};
  }
};

inline void expect_same(const at::Tensor& found, const at::Tensor& expected, const std::string& name) {
  ASSERT_EQ(found.defined(), expected.defined()) << name;
  if (!expected.defined()) return;
  EXPECT_TRUE(found.equal(expected)) << name;
  EXPECT_EQ(found.strides(), expected.strides()) << name;
}

}  // namespace trireme::test
