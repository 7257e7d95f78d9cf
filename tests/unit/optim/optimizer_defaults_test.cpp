// Default options of optimizers.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>

#include "trireme/optim/optimizer.h"

namespace trireme::optim {
namespace {

using TorchOptimizer = std::unique_ptr<torch::optim::Optimizer>;

/// Compares a few steps of an optimizer with only a name to those of libtorch's optimizer with its defaults.
void expect_defaults(const std::string& name,
                     const std::function<TorchOptimizer(std::vector<at::Tensor>)>& make_torchs) {
  SCOPED_TRACE(name);
  const auto begin = [] { return at::full({3, 4}, 0.5, at::kDouble).set_requires_grad(true); };
  const at::Tensor ours = begin(), theirs = begin();
  const auto optimizer = make_optimizer({.name = name}, {{"w", ours}});
  const TorchOptimizer torchs = make_torchs({theirs});
  for (int step = 0; step < 8; ++step) {
    const at::Tensor gradient = (at::arange(12, at::kDouble).view({3, 4}) * 0.1 + (step + 0.05)).sin() * 1e-6;
    ours.mutable_grad() = gradient.clone();
    theirs.mutable_grad() = gradient.clone();
    optimizer->step();
    torchs->step();
  }
  const at::Tensor moved = (theirs.detach() - 0.5).abs();
  EXPECT_GT(moved.min().item<double>(), 0);
  const at::Tensor apart = (ours.detach() - theirs.detach()).abs();
  EXPECT_LE(apart.max().item<double>(), 1e-4 * moved.max().item<double>());
}

// Gradients are so small that eps matters, too.
TEST(OptimizerDefaults, AreLibtorchs) {
  namespace torchs = torch::optim;
  using Parameters = std::vector<at::Tensor>;
  // The default rate of Python, because C++ has none.
  expect_defaults("sgd", [](Parameters all) -> TorchOptimizer {
    return std::make_unique<torchs::SGD>(all, torchs::SGDOptions(1e-3));
  });
  expect_defaults("adam",
                  [](Parameters all) -> TorchOptimizer { return std::make_unique<torchs::Adam>(all); });
  expect_defaults("adamw",
                  [](Parameters all) -> TorchOptimizer { return std::make_unique<torchs::AdamW>(all); });
  expect_defaults("adagrad",
                  [](Parameters all) -> TorchOptimizer { return std::make_unique<torchs::Adagrad>(all); });
  expect_defaults("rmsprop",
                  [](Parameters all) -> TorchOptimizer { return std::make_unique<torchs::RMSprop>(all); });
}

TEST(OptimizerDefaults, ReplaceOnlyMissingOptions) {
  const OptimizerOptions muon = with_defaults({.name = "muon", .lr = 0.5, .nesterov = false});
  EXPECT_EQ(muon.lr, 0.5);
  EXPECT_EQ(muon.nesterov, false);
  EXPECT_EQ(muon.weight_decay, 0.1);
  EXPECT_EQ(muon.momentum, 0.95);
  EXPECT_EQ(muon.muon_scale, "original");
  EXPECT_EQ(with_defaults({.name = "adamw", .weight_decay = 0}).weight_decay, 0);
  EXPECT_EQ(make_optimizer({.name = "lion"}, {})->lr(), 1e-4);
}

}  // namespace
}  // namespace trireme::optim
