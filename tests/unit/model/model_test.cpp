#include "trireme/model/model.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/model/initialise.h"

namespace trireme::model {
namespace {

using testing::HasSubstr;

const std::vector<std::int64_t> kImage = {1, 28, 28};
const std::vector<std::int64_t> kText = {16};

/// A model of the table, and samples for it.
struct Subject {
  explicit Subject(const std::string& name)
      : of_tokens(name == "gpt"),
        model(make_model({.name = name, .layers = 2}, of_tokens ? kText : kImage, 10, 1)) {}

  at::Tensor samples(std::int64_t batch) const {
    return of_tokens ? at::randint(10, {batch, kText[0]}, at::kLong) : at::rand({batch, 1, 28, 28});
  }
  std::vector<std::int64_t> logits_shape(std::int64_t batch) const {
    return of_tokens ? std::vector<std::int64_t>{batch, kText[0], 10} : std::vector<std::int64_t>{batch, 10};
  }

  bool of_tokens;
  std::shared_ptr<Model> model;
};

class EveryModel : public testing::TestWithParam<std::string> {
 protected:
  Subject subject_{GetParam()};
};

TEST_P(EveryModel, MapsABatchToLogits) {
  subject_.model->eval();
  for (const std::int64_t batch : {3, 1, 0}) {
    EXPECT_EQ(subject_.model->forward(subject_.samples(batch)).sizes(), subject_.logits_shape(batch));
  }
}

TEST_P(EveryModel, GivesEveryParameterAGradient) {
  const at::Tensor logits = subject_.model->forward(subject_.samples(4)).reshape({-1, 10});
  at::cross_entropy_loss(logits, at::arange(logits.size(0), at::kLong).remainder(10)).backward();
  for (const auto& parameter : subject_.model->named_parameters()) {
    ASSERT_TRUE(parameter.value().grad().defined()) << parameter.key();
    EXPECT_GT(parameter.value().grad().abs().sum().item<double>(), 0) << parameter.key();
  }
}

TEST_P(EveryModel, GivesSampleLogitsIndependentOfBatch) {
  // Two batch sizes may use two kernels, so results are equal up to f32 rounding.
  subject_.model->eval();
  const at::Tensor input = subject_.samples(8);
  EXPECT_TRUE(subject_.model->forward(input)[5].allclose(subject_.model->forward(input.slice(0, 5, 6))[0],
                                                         1e-4, 1e-5));
}

INSTANTIATE_TEST_SUITE_P(Table, EveryModel, testing::ValuesIn(model_names()),
                         [](const auto& name) { return name.param; });

TEST(Model, LayersAreNamedPlainly) {
  std::vector<std::string> names;
  for (const auto& parameter :
       make_model({.name = "mlp", .hidden = {8}}, kImage, 10, 1)->named_parameters()) {
    names.push_back(parameter.key());
  }
  EXPECT_THAT(names, testing::ElementsAre("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"));
}

TEST(Model, NamesNearestModelAndRejectsWrongShapes) {
  const auto error_of = [](const ModelOptions& options, const std::vector<std::int64_t>& shape) {
    try {
      make_model(options, shape, 10, 1);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error_of({.name = "ccn"}, kImage), HasSubstr("cnn"));
  EXPECT_THAT(error_of({.name = "cnn"}, {784}), HasSubstr("(784)"));
  EXPECT_THAT(error_of({.name = "cnn"}, {1, 3, 28}), HasSubstr("(1, 3, 28)"));
  EXPECT_THAT(error_of({.name = "mlp", .hidden = {0}}, kImage), HasSubstr("width"));
}

TEST(Initialise, DependsOnSeedAndNameOnly) {
  const auto wide = make_model({.name = "mlp", .hidden = {16, 16}}, {4}, 2, 3);
  const auto same = make_model({.name = "mlp", .hidden = {16}}, {4}, 2, 3);
  const auto other = make_model({.name = "mlp", .hidden = {16}}, {4}, 2, 4);
  EXPECT_TRUE(wide->named_parameters()["fc1.weight"].equal(same->named_parameters()["fc1.weight"]));
  EXPECT_FALSE(other->named_parameters()["fc1.weight"].equal(same->named_parameters()["fc1.weight"]));
  EXPECT_FALSE(
      wide->named_parameters()["fc2.weight"].slice(1, 0, 4).equal(wide->named_parameters()["fc1.weight"]));
}

TEST(Initialise, IsTheSameOnEveryPlatform) {
  // Computed with a separate program from the description in random.h.
  at::Tensor values = at::ones({3});
  fill_uniform(values, 1, 42, "fc1.weight");
  EXPECT_EQ(values[0].item<float>(), -0x1.7bf578p-1F);
  EXPECT_EQ(values[1].item<float>(), -0x1.8ca12p-3F);
  EXPECT_EQ(values[2].item<float>(), 0x1.b06b7cp-1F);
}

TEST(Initialise, IsUniformWithinInverseRootOfFan) {
  const auto model = make_model({.name = "mlp", .hidden = {400}}, {25}, 2, 1);
  const at::Tensor weight = model->named_parameters()["fc1.weight"];
  EXPECT_LE(weight.abs().max().item<double>(), 0.2);
  EXPECT_GT(weight.abs().max().item<double>(), 0.1999);
  // 10000 samples of standard deviation 0.2 / sqrt(3): 5 sigma of the mean and of the deviation.
  EXPECT_NEAR(weight.mean().item<double>(), 0, 5 * 0.1155 / 100);
  EXPECT_NEAR(weight.std().item<double>(), 0.2 / std::sqrt(3), 0.003);
  EXPECT_LE(model->named_parameters()["fc1.bias"].abs().max().item<double>(), 0.2);
}

TEST(Initialise, KeepsNonContiguousTensorsInPlace) {
  at::Tensor plain = at::ones({3, 2});
  at::Tensor transposed = at::ones({2, 3}).t();
  fill_uniform(plain, 1, 7, "w");
  fill_uniform(transposed, 1, 7, "w");
  EXPECT_TRUE(plain.equal(transposed));
}

}  // namespace
}  // namespace trireme::model
