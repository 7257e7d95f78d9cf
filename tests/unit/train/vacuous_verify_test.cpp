// A verification reports the steps that it compared. Skipped steps prove nothing.
#include <ATen/ops/sqrt.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>

#include <atomic>
#include <mutex>

#include "tests/unit/train/verified_run.h"
#include "trireme/base/error.h"
#include "trireme/train/run/verify.h"

namespace trireme::train {
namespace {

using testing::HasSubstr;

/// The verdict of rank 0 on two ranks.
Comparison verdict_of(const RunConfig& config, std::int64_t steps, const OwnParts& own = {}) {
  std::optional<Comparison> verdict;
  std::mutex mutex;
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const Comparison mine = verify(config, context, verified_data(), steps, own);
    const std::lock_guard lock(mutex);
    if (context.is_main()) verdict = mine;
  });
  return *verdict;
}

// The scale is so large that every gradient overflows, and both sides skip every step.
TEST(VacuousVerify, AllSkippedStepsAreNotEqual) {
  RunConfig config = verified_config();
  config.train.precision = "fp16";
  config.scaler.initial = config.scaler.most = 0x1p60;
  const Comparison verdict = verdict_of(config, 3);
  EXPECT_FALSE(verdict.equal());
  EXPECT_FALSE(verdict.verified());
  EXPECT_FALSE(verdict.first().has_value()) << verdict.first()->describe();
  EXPECT_EQ(verdict.num_steps(), 3);
  EXPECT_EQ(verdict.num_skipped(), 3);
}

// The scale halves at every skipped step until gradients are finite.
TEST(VacuousVerify, CountsSkippedSteps) {
  RunConfig config = verified_config();
  config.train.precision = "fp16";
  config.scaler.initial = 0x1p24;
  config.train.epochs = 4;
  const Comparison verdict = verdict_of(config, 16);
  EXPECT_TRUE(verdict.equal()) << verdict.first()->describe();
  EXPECT_EQ(verdict.num_steps(), 16);
  EXPECT_GT(verdict.num_skipped(), 0);
  EXPECT_LT(verdict.num_skipped(), 16);
}

TEST(VacuousVerify, CountsTheStepsThatTheRunHas) {
  RunConfig config = verified_config();
  config.train.max_steps = 2;
  const Comparison verdict = verdict_of(config, 9);
  EXPECT_TRUE(verdict.equal());
  EXPECT_EQ(verdict.num_steps(), 2);
}

TEST(VacuousVerify, OfNoStepsIsNotEqual) { EXPECT_FALSE(verdict_of(verified_config(), 0).equal()); }

/// A linear layer whose gradient is NaN on request: the slope of a root at 0.
class MayHaveNoGradient : public model::Model {
 public:
  explicit MayHaveNoGradient(bool none) : none_(none) {
    linear_ = register_module("linear", torch::nn::Linear(36, 4));
  }
  at::Tensor forward(const at::Tensor& input) override {
    const at::Tensor logits = linear_->forward(input.flatten(1));
    return none_ ? logits + at::sqrt(linear_->bias * 0) : logits;
  }

 private:
  torch::nn::Linear linear_ = nullptr;
  bool none_;
};

// The model of the serial run is the third one created, after one for each rank.
TEST(VacuousVerify, StepSkippedByOneSideIsDifference) {
  RunConfig config = verified_config();
  config.train.non_finite = "skip";
  std::atomic<int> made = 0;
  const Comparison verdict = verdict_of(
      config, 1, {.make_model = [&] { return std::make_shared<MayHaveNoGradient>(made.fetch_add(1) == 2); }});
  ASSERT_FALSE(verdict.equal());
  ASSERT_TRUE(verdict.first().has_value());
  EXPECT_THAT(verdict.first()->describe(), HasSubstr("step 1: the serial run alone left it out"));
}

TEST(Verifiable, RequiresComparableSerialRun) {
  const auto refused = [](int ranks, const std::function<void(RunConfig&)>& change, const char* reason) {
    RunConfig config = verified_config();
    change(config);
    EXPECT_THAT([&] { check_verifiable(resolve_plan(config, ranks)); },
                testing::ThrowsMessage<InvalidArgument>(HasSubstr(reason)));
  };
  EXPECT_NO_THROW(check_verifiable(resolve_plan(verified_config(), 2)));
  refused(
      1, [](RunConfig&) {}, "nothing to verify");
  refused(
      1, [](RunConfig&) {}, "; the nearest plan that works on 1 rank: train.accumulation = 2");
  refused(
      2,
      [](RunConfig& c) {
        c.parallel.pipeline = 2;
        c.parallel.schedule = "pipedream";
      },
      "older weights than one rank would");
  refused(
      2,
      [](RunConfig& c) {
        c.parallel.pipeline = 2;
        c.parallel.schedule = "pipedream";
      },
      "; the nearest plan that works on 2 ranks: parallel.schedule = \"1f1b\"");
}

// Half of the last bit of 8 (bf16) and of 11 (fp16), once for a summand and once for a sum. Below 2^-24 fp16
// has no number, on either rank.
TEST(VerifyBounds, CompressionHasBoundsOfItsRounding) {
  const auto of = [](const char* compression) {
    RunConfig config = verified_config();
    config.parallel.compression = compression;
    return bounds_of(resolve_plan(config, 2), {.backend = "shm"});
  };
  EXPECT_EQ(of("bf16").gradient, 0x1p-7);
  EXPECT_EQ(of("bf16").gradient_loss, 0);
  EXPECT_EQ(of("fp16").gradient, 0x1p-10);
  EXPECT_EQ(of("fp16").gradient_loss, 0x1p-24);
}

}  // namespace
}  // namespace trireme::train
