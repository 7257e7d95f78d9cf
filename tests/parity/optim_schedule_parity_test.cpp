// Learning-rate schedules compared with torch.optim.lr_scheduler: data/optim_schedules.safetensors, made by
// optim_reference.py, which has the same cases under the same names.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/paths.h"
#include "trireme/base/text.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/optim/learning_rate.h"

namespace trireme::optim {
namespace {

constexpr std::int64_t kSteps = 20;
constexpr double kLr = 0.3;

struct ScheduleCase {
  const char* name;
  LearningRateOptions options;
};

const std::vector<ScheduleCase> kCases = {
    {"constant", {.schedule = "constant", .warmup_steps = 5}},
    {"step", {.schedule = "step", .warmup_steps = 5, .factor = 0.5, .period_steps = 4}},
    {"multi_step", {.schedule = "multi_step", .factor = 0.2, .milestones = {3, 11, 12}}},
    {"multi_step_warm",
     {.schedule = "multi_step", .warmup_steps = 5, .factor = 0.2, .milestones = {4 + 5, 10 + 5}}},
    {"exponential", {.schedule = "exponential", .warmup_steps = 5, .factor = 0.9, .period_steps = 1}},
    {"polynomial", {.schedule = "polynomial", .warmup_steps = 5, .power = 2}},
    {"linear", {.schedule = "polynomial", .final_fraction = 0.25}},
    {"cosine", {.schedule = "cosine", .warmup_steps = 5, .final_fraction = 0.1}},
    {"inverse_sqrt", {.schedule = "inverse_sqrt", .warmup_steps = 5}},
    {"wsd", {.schedule = "wsd", .warmup_steps = 5, .final_fraction = 0.25, .decay_steps = 6}},
    {"one_cycle",
     {.schedule = "one_cycle", .warmup_steps = 6, .initial_fraction = 1 / 25.0, .final_fraction = 1 / 25e4}},
    {"one_cycle_fall", {.schedule = "one_cycle", .final_fraction = 1 / 10e2}},
    {"reduce_on_plateau",
     {.schedule = "reduce_on_plateau", .final_fraction = 0.2, .factor = 0.5, .patience = 2, .cooldown = 1}},
};

const checkpoint::TensorMap& reference() {
  static const auto kFile =
      checkpoint::load_safetensors(test::checkout("tests/parity/data/optim_schedules.safetensors"));
  return kFile.tensors;
}

class ScheduleParity : public testing::TestWithParam<ScheduleCase> {};

TEST_P(ScheduleParity, HasTheRatesOfPyTorch) {
  const at::Tensor expected = reference().at(text("rates/", GetParam().name));
  const at::Tensor metrics = reference().at("metrics");
  const auto rate = make_learning_rate(GetParam().options, kLr, kSteps);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    // Both compute in f64. PyTorch multiplies the rate of the previous step, step by step.
    EXPECT_NEAR(rate->at(step), expected[step].item<double>(), 1e-14) << "step " << step;
    rate->observe(metrics[step].item<double>());
  }
}

INSTANTIATE_TEST_SUITE_P(All, ScheduleParity, testing::ValuesIn(kCases),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(ScheduleParityCases, CoverEverySchedule) {
  std::vector<std::string> covered;
  for (const ScheduleCase& one : kCases) covered.push_back(one.options.schedule);
  for (const std::string& name : learning_rate_names()) EXPECT_THAT(covered, testing::Contains(name));
}

}  // namespace
}  // namespace trireme::optim
