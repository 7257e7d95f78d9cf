// Optimizers and the moving average, compared with those of PyTorch and of the papers:
// data/optim_*.safetensors, made by optim_reference.py.

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/support/paths.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/optim/moving_average.h"
#include "trireme/optim/optimizer.h"

namespace trireme::optim {
namespace {

using checkpoint::SafetensorsFile;
using Metadata = std::map<std::string, std::string>;

constexpr std::int64_t kSteps = 20;

SafetensorsFile reference(const std::string& name) {
  return checkpoint::load_safetensors(std::filesystem::path(test::checkout("tests/parity/data")) /
                                      ("optim_" + name + ".safetensors"));
}

OptimizerOptions options_of(const Metadata& metadata) {
  OptimizerOptions options = {.name = metadata.at("name"), .weight_decay = 0};  // for cases without a value
  const auto read = [&](const char* key, auto& field) {
    if (metadata.contains(key)) field = std::stod(metadata.at(key));
  };
  read("lr", options.lr);
  read("weight_decay", options.weight_decay);
  read("momentum", options.momentum);
  read("beta1", options.beta1);
  read("beta2", options.beta2);
  read("alpha", options.alpha);
  read("eps", options.eps);
  read("trust_coefficient", options.trust_coefficient);
  options.decay_1d = !metadata.contains("decay_1d");
  options.nesterov = metadata.contains("nesterov");
  options.centered = metadata.contains("centered");
  read("muon_adamw_rate", options.muon_adamw_rate);
  if (metadata.contains("muon_scale")) options.muon_scale = metadata.at("muon_scale");
  return options;
}

bool is_missing(const std::string& name, std::int64_t step) {
  return name == "late" && (step < 5 || step == 12);
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.detach() - b).abs().max().item<double>();
}

/// The references round after other operations than our kernels, or not at all. That is a few units in the
/// last place (1.2e-7) of values around 1 per step, for 20 steps. Muon amplifies rounding about ten times, at
/// the smallest singular values of these matrices. PyTorch's Muon rounds every product to bf16 (3.9e-3). Its
/// updates are at most lr * 1.3, so the bound is a few bf16 units of them.
double bound_of(const SafetensorsFile& file) {
  const Metadata& options = file.metadata;
  if (options.at("name") != "muon") return 2e-6;
  if (!options.contains("bf16")) return 1e-5;
  const double lr = std::stod(options.at("lr"));
  return kSteps * lr * 1.3 * 4 * 3.9e-3;
}

class OptimizerParity : public testing::TestWithParam<const char*> {};

TEST_P(OptimizerParity, TakesTheStepsOfTheReference) {
  const SafetensorsFile file = reference(GetParam());
  const OptimizerOptions options = options_of(file.metadata);
  const double bound = bound_of(file);
  NamedTensors parameters;
  for (const auto& [key, first] : file.tensors) {
    if (key.starts_with("first/"))
      parameters.emplace_back(key.substr(6), first.clone().set_requires_grad(true));
  }
  const auto optimizer = make_optimizer(options, parameters);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    for (auto& [name, parameter] : parameters) {
      parameter.mutable_grad() =
          is_missing(name, step) ? at::Tensor() : file.tensors.at("gradient/" + name)[step].clone();
    }
    optimizer->step();
    for (const auto& [name, parameter] : parameters) {
      EXPECT_LE(largest_difference(parameter, file.tensors.at("after/" + name)[step]), bound)
          << name << " after step " << step;
    }
  }
}

const std::vector<const char*> kCases = {"sgd",
                                         "sgd_momentum",
                                         "sgd_nesterov_decay",
                                         "adam",
                                         "adam_decay",
                                         "adamw",
                                         "adamw_decay",
                                         "adamw_decay_2d",
                                         "adagrad",
                                         "adagrad_decay",
                                         "rmsprop",
                                         "rmsprop_momentum_decay",
                                         "rmsprop_centered",
                                         "rmsprop_centered_momentum",
                                         "lion",
                                         "lion_decay",
                                         "lars",
                                         "lars_decay",
                                         "lars_decay_2d",
                                         "lamb",
                                         "lamb_decay",
                                         "lamb_decay_2d",
                                         "muon",
                                         "muon_bf16",
                                         "muon_decay_2d"};
INSTANTIATE_TEST_SUITE_P(All, OptimizerParity, testing::ValuesIn(kCases),
                         [](const auto& row) { return std::string(row.param); });

TEST(OptimizerParityCases, CoverEveryOptimizer) {
  std::vector<std::string> covered;
  for (const char* name : kCases) covered.push_back(options_of(reference(name).metadata).name);
  for (const std::string& name : optimizer_names()) EXPECT_THAT(covered, testing::Contains(name));
}

TEST(MovingAverageParity, AveragesAsPyTorchDoes) {
  const SafetensorsFile file = reference("moving_average");
  const at::Tensor values = file.tensors.at("value"), after = file.tensors.at("after");
  const at::Tensor parameter = values[0].clone();
  ExponentialMovingAverage average({{"weight", parameter}}, std::stod(file.metadata.at("decay")));
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    parameter.copy_(values[step]);
    average.update();
    // The same kernel with the same inputs.
    EXPECT_TRUE(average.state().at("average/weight").equal(after[step])) << "after step " << step;
  }
}

}  // namespace
}  // namespace trireme::optim
