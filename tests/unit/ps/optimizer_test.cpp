// Update rules compared with results of PyTorch (tests/parity/data, see tests/parity/optim_reference.py).
// ftrl and rowwise_adagrad are compared with their papers in f64.

#include "trireme/ps/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tests/support/paths.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/random.h"

namespace trireme::ps {
namespace {

constexpr std::size_t kSteps = 20;

/// f32 tensors of a safetensors file, flat, by name.
struct Reference {
  std::map<std::string, std::vector<float>> tensors;
  nlohmann::json metadata;

  explicit Reference(const std::string& name) {
    const std::string bytes = read_file(test::checkout("tests/parity/data/optim_" + name + ".safetensors"));
    std::uint64_t size = 0;
    std::memcpy(&size, bytes.data(), sizeof size);
    const auto header = nlohmann::json::parse(bytes.substr(8, size));
    for (const auto& [key, tensor] : header.items()) {
      if (key == "__metadata__") {
        metadata = tensor;
        continue;
      }
      const std::size_t begin = tensor["data_offsets"][0], end = tensor["data_offsets"][1];
      std::vector<float>& values = tensors[key];
      values.resize((end - begin) / sizeof(float));
      std::memcpy(values.data(), bytes.data() + 8 + size + begin, end - begin);
    }
  }

  OptimizerSpec spec() const {
    OptimizerSpec spec;
    spec.name = metadata["name"];
    spec.weight_decay = 0;  // for references that name none
    const auto read = [&](const char* key, double& field) {
      if (metadata.contains(key)) field = std::stod(metadata[key].get<std::string>());
    };
    read("lr", spec.lr);
    read("weight_decay", spec.weight_decay);
    read("momentum", spec.momentum);
    read("beta1", spec.beta1);
    read("beta2", spec.beta2);
    read("alpha", spec.alpha);
    read("eps", spec.eps);
    spec.nesterov = metadata.contains("nesterov");
    return with_defaults(spec);
  }
};

class RuleParity : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, RuleParity,
                         testing::Values("sgd", "sgd_momentum", "sgd_nesterov_decay", "adam", "adam_decay",
                                         "adamw", "adamw_decay", "adagrad", "adagrad_decay", "rmsprop",
                                         "rmsprop_momentum_decay", "lamb", "lamb_decay"),
                         [](const auto& row) { return std::string(row.param); });

TEST_P(RuleParity, TakesTheStepsOfTheReference) {
  const Reference reference(GetParam());
  const OptimizerSpec spec = reference.spec();
  const OptimizerRule& rule = optimizer_rule(spec.name);
  double largest = 0;
  std::size_t num_equal = 0, num_all = 0;
  for (const char* name : {"weight", "bias", "late"}) {
    std::vector<float> values = reference.tensors.at(std::string("first/") + name);
    const auto& gradients = reference.tensors.at(std::string("gradient/") + name);
    const auto& after = reference.tensors.at(std::string("after/") + name);
    std::vector<float> state(rule.state_elements(values.size()), rule.first_state(spec));
    std::uint64_t num_updates = 0;
    for (std::size_t step = 0; step < kSteps; ++step) {
      const bool is_missing = std::string(name) == "late" && (step < 5 || step == 12);
      if (!is_missing) {
        const std::span gradient(gradients.data() + step * values.size(), values.size());
        rule.update(spec, {.values = values, .gradient = gradient, .state = state, .step = ++num_updates});
      }
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double difference = std::abs(static_cast<double>(values[i]) - after[step * values.size() + i]);
        largest = std::max(largest, difference);
        num_equal += difference == 0 ? 1 : 0;
        ++num_all;
      }
    }
  }
  RecordProperty("largest_difference", std::to_string(largest));
  RecordProperty("equal_percent", static_cast<int>(100 * num_equal / num_all));
  // The same bound as for the optimizers of trireme/optim with the same files: a few units in the last place
  // of values around 1 per step.
  EXPECT_LE(largest, 2e-6);
}

TEST(RowwiseAdagrad, IsThatOfItsDefinition) {
  OptimizerSpec spec;
  spec.name = "rowwise_adagrad";
  spec.lr = 0.1;
  spec = with_defaults(spec);
  Random random(1);
  std::vector<float> values(16), gradient(16), state(1);
  for (float& value : values) value = random.uniform();
  std::vector<double> expected(values.begin(), values.end());
  double sum = 0;
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    double squares = 0;
    for (float& one : gradient) {
      one = 2 * random.uniform() - 1;
      squares += static_cast<double>(one) * one;
    }
    sum += squares / 16;
    for (std::size_t i = 0; i < 16; ++i) expected[i] -= spec.lr * gradient[i] / (std::sqrt(sum) + spec.eps);
    optimizer_rule(spec.name).update(spec,
                                     {.values = values, .gradient = gradient, .state = state, .step = step});
    for (std::size_t i = 0; i < 16; ++i) EXPECT_NEAR(values[i], expected[i], 2e-6);
  }
}

/// Algorithm 1 of McMahan et al. 2013, with alpha = lr and beta = 0: values from z and n.
TEST(Ftrl, IsThatOfItsPaper) {
  OptimizerSpec spec;
  spec.name = "ftrl";
  spec.lr = 0.5;
  spec.l1 = 0.3;
  spec.l2 = 0.2;
  spec = with_defaults(spec);
  Random random(2);
  std::vector<float> values(8), gradient(8), state(16);
  std::vector<double> z(8), n(8);
  std::size_t num_zero = 0;
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    for (std::size_t i = 0; i < 8; ++i) {
      const auto value_now = [&] {
        if (std::abs(z[i]) <= spec.l1 || n[i] == 0) return 0.0;
        return -(z[i] - std::copysign(spec.l1, z[i])) / (std::sqrt(n[i]) / spec.lr + 2 * spec.l2);
      };
      gradient[i] = 2 * random.uniform() - 1;
      const double g = gradient[i], sigma = (std::sqrt(n[i] + g * g) - std::sqrt(n[i])) / spec.lr;
      z[i] += g - sigma * value_now();
      n[i] += g * g;
    }
    optimizer_rule("ftrl").update(spec,
                                  {.values = values, .gradient = gradient, .state = state, .step = step});
    for (std::size_t i = 0; i < 8; ++i) {
      const bool is_zero = std::abs(z[i]) <= spec.l1;
      num_zero += is_zero ? 1 : 0;
      const double expected =
          is_zero ? 0 : -(z[i] - std::copysign(spec.l1, z[i])) / (std::sqrt(n[i]) / spec.lr + 2 * spec.l2);
      EXPECT_NEAR(values[i], expected, 2e-6) << "element " << i << " after step " << step;
    }
  }
  EXPECT_GT(num_zero, 0U);
}

/// The defaults of torch.optim. Those of lamb are from trireme::optim.
TEST(OptimizerTable, HasPyTorchsDefaults) {
  const auto expect = [](const char* name, double lr, double weight_decay, double eps) {
    OptimizerSpec spec;
    spec.name = name;
    spec = with_defaults(spec);
    EXPECT_EQ(std::tie(spec.lr, spec.weight_decay, spec.eps), std::tie(lr, weight_decay, eps)) << name;
    check(spec);
  };
  expect("sgd", 1e-3, 0, 1e-8);
  expect("adam", 1e-3, 0, 1e-8);
  expect("adamw", 1e-3, 1e-2, 1e-8);
  expect("adagrad", 1e-2, 0, 1e-10);
  expect("rmsprop", 1e-2, 0, 1e-8);
  expect("lamb", 1e-3, 0, 1e-6);
  OptimizerSpec given;
  given.name = "adamw";
  given.weight_decay = 0;
  EXPECT_EQ(with_defaults(given).weight_decay, 0);
}

TEST(OptimizerTable, ErrorNamesTheInvalidValue) {
  OptimizerSpec spec;
  spec.name = "adm";
  EXPECT_THROW(check(spec), InvalidArgument);
  spec.name = "adam";
  spec.beta1 = 1.5;
  try {
    check(spec);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "the beta1 of adam must be in [0, 1), not 1.5");
  }
}

}  // namespace
}  // namespace trireme::ps
