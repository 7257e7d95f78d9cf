// The initial values of a registered model: those of its constructor on rank 0, on all ranks.
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/utils.h>

#include <atomic>

#include "tests/unit/train/verified_run.h"
#include "trireme/base/error.h"
#include "trireme/model/deferred.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/run/verify.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

/// Norms, and a parameter that is neither a weight nor a bias. No rule for Linear layers applies to them.
struct Normed : model::Model {
  Normed() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("layer_norm", layer_norm);
    register_module("last", last);
    scale = register_parameter("scale", at::full({}, 1.5));
  }
  at::Tensor forward(const at::Tensor& input) override { return tail(head(input)); }
  std::vector<model::Layer> layers() override {
    model::Layer end = model::make_layer(*this, "tail", {layer_norm.ptr(), last.ptr()},
                                         [this](const at::Tensor& x) { return tail(x); });
    end.parameters.emplace_back("scale", scale);
    return {model::make_layer(*this, "head", {first.ptr(), norm.ptr()},
                              [this](const at::Tensor& x) { return head(x); }),
            end};
  }
  at::Tensor head(const at::Tensor& input) { return norm->forward(first->forward(input.flatten(1))).tanh(); }
  at::Tensor tail(const at::Tensor& x) { return last->forward(layer_norm->forward(x)) * scale; }
  torch::nn::Linear first{36, 6}, last{6, 4};
  torch::nn::BatchNorm1d norm{6};
  torch::nn::LayerNorm layer_norm{torch::nn::LayerNormOptions({6})};
  at::Tensor scale;
};

RunConfig config_with(const std::string& name, std::function<std::shared_ptr<model::Model>()> make) {
  RunConfig config = verified_config();
  config.registry = std::make_shared<const Registry>(
      OwnTypes{.models = {{name, [make = std::move(make)](const ModelTask&) { return make(); }}}});
  config.model.name = name;
  return config;
}

std::map<std::string, at::Tensor> values_of(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> values;
  for (const auto& item : module.named_parameters()) values[item.key()] = item.value().detach().clone();
  for (const auto& item : module.named_buffers()) values[item.key()] = item.value().clone();
  return values;
}

std::shared_ptr<model::Model> made(const RunConfig& config) { return make_model(config, verified_data(), 4); }

TEST(OwnFirstValues, AreThoseOfTheConstructor) {
  const RunConfig config = config_with("normed", [] { return std::make_shared<Normed>(); });
  const auto found = values_of(*made(config));
  EXPECT_TRUE(found.at("norm.weight").equal(at::ones({6})));
  EXPECT_TRUE(found.at("layer_norm.bias").equal(at::zeros({6})));
  EXPECT_EQ(found.at("scale").item<float>(), 1.5F);
  at::manual_seed(static_cast<std::uint64_t>(config.run.seed));
  const auto torchs = values_of(Normed());
  for (const auto& [name, values] : torchs) EXPECT_TRUE(values.equal(found.at(name))) << name;
}

TEST(OwnFirstValues, OfATrainedModelStay) {
  const RunConfig config = config_with("trained", [] {
    const auto model = std::make_shared<Normed>();
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : model->parameters()) parameter.fill_(0.25);
    return model;
  });
  const auto model = made(config);
  for (const at::Tensor& parameter : model->parameters())
    EXPECT_TRUE(parameter.equal(at::full_like(parameter, 0.25)));
}

TEST(OwnFirstValues, LeaveGeneratorOfLibtorchUntouched) {
  const RunConfig config = config_with("normed", [] { return std::make_shared<Normed>(); });
  at::manual_seed(3);
  const at::Tensor expected = at::rand({4});
  at::manual_seed(3);
  made(config);
  EXPECT_TRUE(at::rand({4}).equal(expected));
}

TEST(OwnFirstValues, UseOverriddenInitialise) {
  struct Own : Normed {
    void initialise(std::uint64_t seed) override {
      const at::NoGradGuard no_grad;
      scale.fill_(double(seed));
    }
  };
  RunConfig config = config_with("own", [] { return std::make_shared<Own>(); });
  config.run.seed = 11;
  EXPECT_EQ(values_of(*made(config)).at("scale").item<float>(), 11);
}

TEST(OwnFirstValues, UnknownDeferredParameterGetsAdvice) {
  RunConfig config =
      config_with("deferred", [] { return model::deferred([] { return std::make_shared<Normed>(); }); });
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    EXPECT_THAT([&] { Trainer(config, context, verified_data()); },
                ThrowsMessage<InvalidArgument>(HasSubstr("override Model::initialise")));
  });
}

/// Each object has other values, like a constructor that reads a clock.
struct EachItsOwn : Normed {
  EachItsOwn() {
    static std::atomic<int> count = 0;
    const at::NoGradGuard no_grad;
    const int number = ++count;
    for (at::Tensor& parameter : parameters()) parameter.add_(0.01 * number);
    for (at::Tensor& buffer : buffers())
      if (buffer.is_floating_point()) buffer.add_(0.01 * number);
  }
};

struct Layout {
  const char* name;
  ParallelOptions parallel;
};
void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.name; }

class OwnFirstValuesOn : public testing::TestWithParam<Layout> {};

TEST_P(OwnFirstValuesOn, RanksMatchOneRankAndVerify) {
  RunConfig config = config_with("each", [] { return std::make_shared<EachItsOwn>(); });
  config.parallel = GetParam().parallel;
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const Comparison comparison = verify(config, context, verified_data(), 2);
    if (!context.is_main()) return;
    EXPECT_TRUE(comparison.equal()) << comparison.first()->describe();
    EXPECT_TRUE(comparison.verified());
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, OwnFirstValuesOn,
                         testing::Values(Layout{"replicas", {}}, Layout{"stages", {.pipeline = 2}},
                                         Layout{"zero1", {.zero = 1}}, Layout{"zero3", {.zero = 3}}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace trireme::train
