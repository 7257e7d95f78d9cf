// The objective determines the meaning of a column of integers, unless data.target sets it.
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/step/internal/check.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

class TargetMeaning : public testing::Test {
 protected:
  /// 40 rows. The target of each is `target_of` its number.
  template <class TargetOf>
  RunConfig table(const std::string& objective, const TargetOf& target_of) const {
    std::ofstream file(folder_ / "t.csv");
    file << "x,z,y\n";
    for (int i = 0; i < 40; ++i) file << 0.1 * i << ",0.5," << target_of(i) << "\n";
    RunConfig config;
    config.data.name = "csv";
    config.data.path = (folder_ / "t.csv").string();
    config.objective.name = objective;
    config.model.hidden = {4};
    config.train.global_batch = 4;
    return config;
  }
  const test::TemporaryFolder folder_;
};

constexpr auto kPrice = [](int i) { return 1000 * i; };
constexpr auto kYesOrNo = [](int i) { return i % 2; };

/// Number of outputs of a model for one row.
std::int64_t outputs_of(const RunConfig& config) {
  check_run_config(config, 1);
  const data::DataSource data = open_data(config);
  return make_objective(config, {.data = data})->num_outputs(data);
}

TEST_F(TargetMeaning, WholePricesAreNumbersForRegression) {
  EXPECT_EQ(outputs_of(table("mean_squared_error", kPrice)), 1);
  EXPECT_EQ(outputs_of(table("binary_cross_entropy", kYesOrNo)), 1);
  EXPECT_EQ(outputs_of(table("cross_entropy", kYesOrNo)), 2);
}

TEST_F(TargetMeaning, WholeNumbersAreClassesForOneHot) {
  RunConfig config = table("mean_squared_error", [](int i) { return i % 3; });
  config.objective.one_hot = true;
  EXPECT_EQ(outputs_of(config), 3);
}

TEST_F(TargetMeaning, WholePricesAreNoClasses) {
  EXPECT_THAT([&] { open_data(table("cross_entropy", kPrice)); },
              ThrowsMessage<DataError>(
                  AllOf(HasSubstr("t.csv, line 3 is of class 1000"), HasSubstr("data.num_classes"))));
  EXPECT_THAT([&] { open_data(table("cross_entropy", [](int i) { return i == 7 ? 0.5 : 1; })); },
              ThrowsMessage<DataError>(
                  AllOf(HasSubstr("t.csv, line 9, column 'y'"), HasSubstr("data.target = \"number\""))));
}

TEST_F(TargetMeaning, KeyComesBeforeTheObjective) {
  RunConfig config = table("mean_squared_error", kYesOrNo);
  config.data.target = "class";
  EXPECT_EQ(open_data(config).num_classes, 2);
  EXPECT_THAT([&] { check_run_config(config, 1); },
              ThrowsMessage<InvalidArgument>(HasSubstr("set data.target = \"number\"")));
  config = table("cross_entropy", kYesOrNo);
  config.data.num_classes = 5;
  EXPECT_EQ(outputs_of(config), 5);
}

TEST_F(TargetMeaning, KeyTurnsClassesIntoNumbers) {
  RunConfig config;
  config.data.name = "synthetic";
  config.objective.name = "mean_squared_error";
  config.model.hidden = {4};
  EXPECT_THAT([&] { check_run_config(config, 1); },
              ThrowsMessage<InvalidArgument>(HasSubstr("set data.target = \"number\"")));
  config.data.target = "number";
  EXPECT_EQ(outputs_of(config), 1);
  std::ofstream(folder_ / "some.txt") << std::string(1000, 'a');
  config.data = {.name = "text", .path = (folder_ / "some.txt").string(), .target = "number"};
  EXPECT_THAT([&] { open_data(config); },
              ThrowsMessage<InvalidArgument>(HasSubstr("the next tokens of a text")));
}

/// Four integer features and a class.
class WholeFeatures : public data::Dataset {
 public:
  std::int64_t size() const override { return 8; }
  data::Example get(std::int64_t index) const override {
    return {at::full({4}, index, at::kLong), at::full({}, index % 2, at::kLong)};
  }
};

TEST_F(TargetMeaning, IntegerInputsForFloatLayerAreNamed) {
  const auto samples = std::make_shared<WholeFeatures>();
  const data::DataSource data{
      .name = "own", .train = samples, .test = samples, .input_shape = {4}, .num_classes = 2};
  RunConfig config;
  config.model.hidden = {4};
  config.train.global_batch = 4;
  EXPECT_THAT(
      [&] { make_checked_model(resolve_plan(config, 1), data); },
      ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("inputs are Long"), HasSubstr("astype('float32')"))));
}

TEST_F(TargetMeaning, IgnoredClassesDoNotCount) {
  RunConfig config = table("cross_entropy", [](int i) { return i == 7 ? 255 : i % 3; });
  config.objective.ignored_classes = {255};
  EXPECT_EQ(outputs_of(config), 3);
}

}  // namespace
}  // namespace trireme::train
