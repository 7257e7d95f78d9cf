// Objectives compared with torch.nn.functional: data/objectives.safetensors, made by objective_reference.py,
// which has the same cases under the same names. Each case runs as a whole batch and as two micro-batches of
// uneven size.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "trireme/base/text.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/data/synthetic_dataset.h"
#include "trireme/objective/objective.h"

namespace trireme::objective {
namespace {

struct LossCase {
  const char* name;
  ObjectiveOptions options;
  std::int64_t targets_per_sample = 1;
};

const std::vector<double> kWeights = {0.5, 2, 1, 0.25, 3};
const std::vector<LossCase> kCases = {
    {"cross_entropy", {}},
    {"cross_entropy_smoothed", {.label_smoothing = 0.2}},
    {"cross_entropy_ignored", {.ignored_classes = {1}}},
    {"cross_entropy_weighted", {.class_weights = kWeights}},
    {"cross_entropy_all", {.label_smoothing = 0.1, .ignored_classes = {1}, .class_weights = kWeights}},
    {"cross_entropy_tokens", {}, 4},
    {"mean_squared_error", {.name = "mean_squared_error"}},
    {"binary_cross_entropy", {.name = "binary_cross_entropy"}},
    {"binary_cross_entropy_weighted", {.name = "binary_cross_entropy", .positive_weight = 2.5}},
};

class LossParity : public testing::TestWithParam<LossCase> {
 protected:
  at::Tensor of_file(const char* what) {
    static const auto kFile =
        checkpoint::load_safetensors(test::checkout("tests/parity/data/objectives.safetensors"));
    return kFile.tensors.at(text(GetParam().name, "/", what));
  }
  data::DataSource data_ = {.name = "parity",
                            .train = std::make_shared<data::SyntheticDataset>(data::SyntheticOptions{}),
                            .test = nullptr,
                            .input_shape = {1},
                            .num_classes = 5,
                            .targets_per_sample = GetParam().targets_per_sample};
};

TEST_P(LossParity, MatchesMeanAndGradientOfPyTorch) {
  const auto objective = make_objective(GetParam().options, {.data = data_});
  const at::Tensor target = of_file("target");
  const std::int64_t samples = target.size(0);
  for (const std::int64_t cut : {samples, std::int64_t{2}}) {
    const at::Tensor output = of_file("output").clone().requires_grad_();
    double sum = 0, count = 0;
    for (std::int64_t begin = 0, end = cut; begin < samples; begin = end, end = samples) {
      const at::Tensor part = target.slice(0, begin, end);
      const at::Tensor loss = objective->loss(output.slice(0, begin, end), part);
      loss.backward();
      sum += loss.item<double>();
      count += objective->count(part);
    }
    // Sums of at most 42 f32 numbers, added in another order. 1e-6 is eight units of rounding.
    EXPECT_NEAR(sum / count, of_file("loss").item<double>(), 1e-6 * (1 + sum / count)) << "cut " << cut;
    EXPECT_LT((output.grad() / count - of_file("gradient")).abs().max().item<double>(), 1e-6)
        << "cut " << cut;
  }
}

INSTANTIATE_TEST_SUITE_P(All, LossParity, testing::ValuesIn(kCases),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(LossParityCases, CoverEveryObjectiveButTheModelsOwn) {
  std::vector<std::string> covered = {"model"};
  for (const LossCase& one : kCases) covered.push_back(one.options.name);
  for (const std::string& name : objective_names()) EXPECT_THAT(covered, testing::Contains(name));
}

}  // namespace
}  // namespace trireme::objective
