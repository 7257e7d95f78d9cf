// Rejections of objectives, counts of metrics, and properties of every row of the table.

#include "trireme/objective/objective.h"

#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "trireme/base/error.h"

namespace trireme::objective {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// A data set of one sample with the given target.
class OneSample : public data::Dataset {
 public:
  explicit OneSample(at::Tensor target) : target_(std::move(target)) {}
  std::int64_t size() const override { return 1; }
  data::Example get(std::int64_t) const override { return {at::ones({2}), target_}; }

 private:
  at::Tensor target_;
};

data::DataSource data_with(const at::Tensor& target, std::int64_t num_classes = 3) {
  return {.name = "own",
          .train = std::make_shared<OneSample>(target),
          .test = nullptr,
          .input_shape = {2},
          .num_classes = num_classes};
}

const at::Tensor kClass = at::full({}, 1, at::kLong);
const at::Tensor kNumbers = at::full({4}, 0.5, at::kFloat);

std::shared_ptr<const Objective> of_classes(ObjectiveOptions options = {}) {
  return make_objective(options, {.data = data_with(kClass)});
}

std::shared_ptr<const Objective> of_numbers(const std::string& name, std::vector<std::string> metrics = {}) {
  return make_objective({.name = name, .metrics = std::move(metrics)}, {.data = data_with(kNumbers, 0)});
}

double measured(const Objective& objective, std::size_t metric, const at::Tensor& output,
                const at::Tensor& target) {
  const Metric& it = objective.metrics().at(metric);
  const Sum sum = it.measure(output, target);
  const double mean = sum.value.read() / sum.count;
  return it.finish ? it.finish(mean) : mean;
}

TEST(ObjectiveTable, NamesNearestKnownObjective) {
  EXPECT_THAT([] { of_numbers("mean_square_error"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("did you mean 'mean_squared_error'")));
  EXPECT_THAT([] { of_classes({.metrics = {"acuracy"}}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("did you mean 'accuracy'")));
}

TEST(ObjectiveTable, RejectsOptionsAndMetricsOfOtherObjectives) {
  const auto of_mse = [](ObjectiveOptions options) {
    options.name = "mean_squared_error";
    make_objective(options, {.data = data_with(kNumbers, 0)});
  };
  EXPECT_THAT([&] { of_mse({.label_smoothing = 0.1}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("objective.label_smoothing")));
  EXPECT_THAT([&] { of_mse({.ignored_classes = {0}}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("objective.ignored_classes")));
  EXPECT_THAT([&] { of_mse({.class_weights = {1}}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("objective.class_weights")));
  EXPECT_THAT([&] { of_mse({.positive_weight = 2}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("objective.positive_weight")));
  EXPECT_THAT([&] { of_mse({.metrics = {"accuracy"}}); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("\"accuracy\" does not measure"), HasSubstr("mean_absolute_error"))));
  EXPECT_THAT(
      [] {
        of_classes({.metrics = {"accuracy", "accuracy"}});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("twice")));
}

TEST(ObjectiveTargets, RejectsOtherKindsWithAdvice) {
  EXPECT_THAT([] { of_classes()->check_target(kNumbers, "the data"); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("the data: the target of sample 0 is Float of shape [4]"),
                        HasSubstr("expected Long of shape []"), HasSubstr("objective.name"))));
  for (const char* name : {"mean_squared_error", "binary_cross_entropy"}) {
    EXPECT_THAT([&] { of_numbers(name)->check_target(kClass, "the data"); },
                ThrowsMessage<InvalidArgument>(AllOf(
                    HasSubstr("Long of shape []"), HasSubstr("expected Float"), HasSubstr("cross_entropy"))));
  }
  EXPECT_THAT([] { make_objective({}, {.data = data_with(kNumbers, 0)}); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("0 classes"), HasSubstr("mean_squared_error"))));
  EXPECT_THAT(
      [] {
        of_classes({.class_weights = {1, 2}});
      },
      ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("2 numbers"), HasSubstr("3 classes"))));
}

TEST(ObjectiveTargets, NonFiniteTargetsAreNamedBySample) {
  const std::vector<std::int64_t> indices = {7, 9};
  const auto refused = [&](const Objective& objective, const at::Tensor& target, const char* what) {
    EXPECT_THAT(
        [&] {
          objective.check_batch({at::ones({2, 2}), target}, indices);
        },
        ThrowsMessage<DataError>(HasSubstr(what)));
  };
  refused(*of_classes(), at::tensor({0, 3}, at::kLong), "sample 9 of the data set is of class 3");
  refused(*of_classes(), at::tensor({0.f, 1.f}), "Float");
  refused(*of_classes(), at::zeros({3}, at::kLong), "3 targets for its 2 samples");
  refused(*of_numbers("mean_squared_error"), at::tensor({1.f, 1.f, NAN, 1.f}).view({2, 2}),
          "sample 9 of the data set has nan as number 0");
  refused(*of_numbers("binary_cross_entropy"), at::tensor({1.f, 1.5f}), "sample 9 of the data set has 1.5");
  EXPECT_NO_THROW(of_classes({.ignored_classes = {-1}})
                      ->check_batch({at::ones({2, 2}), at::tensor({-1, 2}, at::kLong)}, indices));
}

TEST(ObjectiveOutputs, RejectsOutputsThatDoNotFitTargets) {
  const auto mse = of_numbers("mean_squared_error");
  EXPECT_THAT(
      [&] {
        mse->check_output(at::ones({2, 3}), at::ones({2, 4}));
      },
      ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("[2, 3]"), HasSubstr("[2, 4]"))));
  // These shapes would be broadcast to a square of differences, or compared across rows and columns.
  EXPECT_THROW(mse->check_output(at::ones({1, 4}), at::ones({4, 1})), InvalidArgument);
  EXPECT_THROW(mse->check_output(at::ones({2, 3, 4}), at::ones({2, 4, 3})), InvalidArgument);
  EXPECT_NO_THROW(mse->check_output(at::ones({2, 12}), at::ones({2, 3, 4})));
  EXPECT_THAT(
      [&] {
        of_classes()->check_output(at::ones({1, 4}), at::zeros({1}, at::kLong));
      },
      ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("3 classes"), HasSubstr("[1, 4]"))));
  // A column of numbers and a row of targets are compared element by element.
  const at::Tensor target = at::tensor({1.f, 2.f});
  EXPECT_EQ(mse->loss(target.unsqueeze(1), target).item<double>(), 0);
}

TEST(ObjectiveCounts, SkipIgnoredTargetsAndApplyWeights) {
  const at::Tensor target = at::tensor({0, 1, 1, 2}, at::kLong);
  EXPECT_EQ(of_classes()->count(target), 4);
  EXPECT_FALSE(of_classes()->counts_by_value());
  const auto ignoring = of_classes({.ignored_classes = {1}});
  EXPECT_EQ(ignoring->count(target), 2);
  EXPECT_TRUE(ignoring->counts_by_value());
  EXPECT_EQ(of_classes({.class_weights = {1, 0.5, 4}})->count(target), 6);
}

TEST(ObjectiveCounts, OfNumbersAreThoseOfTheElements) {
  for (const char* name : {"mean_squared_error", "binary_cross_entropy"})
    EXPECT_EQ(of_numbers(name)->count(at::zeros({3, 2})), 6) << name;
}

/// An objective for `per_sample` targets of 3 classes.
std::shared_ptr<const Objective> of_one_hot(ObjectiveOptions options = {}, std::int64_t per_sample = 1) {
  options.name = "mean_squared_error";
  options.one_hot = true;
  data::DataSource data = data_with(kClass);
  data.targets_per_sample = per_sample;
  return make_objective(options, {.data = data});
}

TEST(OneHotTargets, HaveLossOfPyTorchMse) {
  const auto objective = of_one_hot();
  const at::Tensor target = at::tensor({2, 0, 1, 2}, at::kLong);
  const at::Tensor output = at::randn({4, 3}).requires_grad_(), same = output.detach().clone();
  same.requires_grad_();
  const at::Tensor expected = at::mse_loss(same, at::one_hot(target, 3).to(at::kFloat));
  EXPECT_EQ(objective->count(target), 12);
  const at::Tensor loss = objective->loss(output, target) / objective->count(target);
  loss.backward();
  expected.backward();
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-6);
  EXPECT_LT((output.grad() - same.grad()).abs().max().item<double>(), 1e-7);
  EXPECT_FALSE(objective->counts_by_value());
  EXPECT_EQ(objective->num_outputs(data_with(kClass)), 3);
}

TEST(OneHotTargets, AreOnesOfEachTokenToo) {
  const at::Tensor target = at::tensor({2, 0, 1, 2}, at::kLong).view({2, 2});
  const at::Tensor output = at::one_hot(target, 3).to(at::kFloat);
  const auto objective = of_one_hot({}, 2);
  EXPECT_EQ(objective->loss(output, target).item<double>(), 0);
  EXPECT_EQ(objective->loss(1 - output, target).item<double>(), objective->count(target));
  EXPECT_NO_THROW(objective->check_output(output.slice(0, 0, 1), target.slice(0, 0, 1)));
}

TEST(OneHotTargets, HaveTheMetricsOfClasses) {
  const at::Tensor output = at::tensor({3.f, 2.f, 1.f, 1.f, 3.f, 2.f}).view({2, 3});  // best: 0, 1
  const at::Tensor target = at::tensor({0, 2}, at::kLong);
  const auto objective = of_one_hot();
  ASSERT_EQ(objective->metrics().size(), 1u);
  EXPECT_EQ(objective->metrics()[0].name, "accuracy");
  EXPECT_DOUBLE_EQ(measured(*objective, 0, output, target), 0.5);
  EXPECT_DOUBLE_EQ(measured(*of_one_hot({.metrics = {"top_k"}, .top_k = 2}), 0, output, target), 1);
  EXPECT_THAT([] { of_one_hot({.metrics = {"mean_absolute_error"}}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("\"mean_absolute_error\" does not measure")));
  EXPECT_EQ(target_of_objective({.name = "mean_squared_error"}), "number");
  EXPECT_EQ(target_of_objective({.name = "mean_squared_error", .one_hot = true}), "class");
}

TEST(OneHotTargets, RejectsOtherLossesAndNonClassTargets) {
  EXPECT_THAT([] { of_classes({.one_hot = true}); },
              ThrowsMessage<InvalidArgument>(
                  "objective.one_hot is of objective.name = \"mean_squared_error\"; leave it out with "
                  "\"cross_entropy\""));
  EXPECT_THAT([] { of_one_hot({.label_smoothing = 0.1}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("objective.label_smoothing")));
  EXPECT_THAT([] { of_one_hot()->check_target(kNumbers, "the data"); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("Float of shape [4]"), HasSubstr("a mean squared error of one-hot targets"),
                        HasSubstr("expected Long of shape []"), HasSubstr("leave objective.one_hot out"))));
  EXPECT_THAT([] { of_numbers("mean_squared_error")->check_target(kClass, "the data"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("objective.one_hot = true")));
  EXPECT_THAT([] { of_one_hot({}, 0); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("objective.one_hot counts padding"), HasSubstr("cross_entropy"))));
  const std::vector<std::int64_t> indices(2, 9);
  EXPECT_THAT(
      [&] {
        of_one_hot()->check_batch({at::ones({2, 2}), at::tensor({0, 3}, at::kLong)}, indices);
      },
      ThrowsMessage<DataError>(HasSubstr("sample 9 of the data set is of class 3")));
}

TEST(Metrics, CountCorrectClasses) {
  const at::Tensor output =
      at::tensor({3.f, 2.f, 1.f, 1.f, 3.f, 2.f, 3.f, 1.f, 2.f}).view({3, 3});  // best: 0, 1, 0
  const at::Tensor target = at::tensor({0, 2, 2}, at::kLong);
  const auto all = of_classes({.metrics = {"accuracy", "top_k", "perplexity"}, .top_k = 2});
  EXPECT_DOUBLE_EQ(measured(*all, 0, output, target), 1.0 / 3);
  EXPECT_DOUBLE_EQ(measured(*all, 1, output, target), 1);
  const double loss = all->loss(output, target).item<double>() / 3;
  EXPECT_NEAR(measured(*all, 2, output, target), std::exp(loss), 1e-6);
  const auto ignoring = of_classes({.metrics = {"accuracy"}, .ignored_classes = {2}});
  EXPECT_DOUBLE_EQ(measured(*ignoring, 0, output, target), 1);
  EXPECT_THAT([&] { measured(*of_classes({.metrics = {"top_k"}}), 0, output, target); },
              ThrowsMessage<InvalidArgument>(HasSubstr("objective.top_k = 5 of 3 classes")));
}

TEST(Metrics, NumericMetricsMatchWholeData) {
  const at::Tensor output = at::tensor({1.f, 2.f, 3.f, 8.f}), target = at::tensor({1.f, 0.f, 4.f, 4.f});
  const auto both = of_numbers("mean_squared_error", {"mean_absolute_error", "root_mean_squared_error"});
  EXPECT_DOUBLE_EQ(measured(*both, 0, output, target), 7.0 / 4);
  EXPECT_DOUBLE_EQ(measured(*both, 1, output, target), std::sqrt(21.0 / 4));
  const Metric& root = both->metrics()[1];
  const Sum first = root.measure(output.slice(0, 0, 1), target.slice(0, 0, 1)),
            rest = root.measure(output.slice(0, 1), target.slice(0, 1));
  EXPECT_DOUBLE_EQ(root.finish((first.value.read() + rest.value.read()) / (first.count + rest.count)),
                   std::sqrt(21.0 / 4));
  const auto yes = of_numbers("binary_cross_entropy");
  EXPECT_DOUBLE_EQ(measured(*yes, 0, at::tensor({-1.f, 2.f, 3.f, -4.f}), at::tensor({0.f, 1.f, 0.f, 0.f})),
                   0.75);
}

TEST(ModelLoss, SaysSoWhereAModelHasNone) {
  const auto model = model::make_model({.hidden = {4}}, {1, 4, 4}, 3, 1);
  const data::DataSource data = data_with(kClass);
  const auto objective = make_objective({.name = "model"}, {.data = data, .model = model.get()});
  EXPECT_THAT(
      [&] {
        objective->loss(at::ones({1, 3}), at::zeros({1}, at::kLong));
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("override Model::loss")));
}

}  // namespace
}  // namespace trireme::objective
