// Training with rounded gathered weights. It converges and resumes from a checkpoint with the same bits. It
// reports where it has no effect, and rejects unsupported combinations.
#include <gmock/gmock.h>

#include "tests/unit/train/small_runs.h"
#include "trireme/base/error.h"
#include "trireme/train/plan/parallel_plan.h"
#include "trireme/train/run/verify.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// Over gloo, where ranks share no memory.
class GatheredTraining : public SmallRuns {
 protected:
  RunConfig gathered(const std::string& name, const std::string& weights, std::int64_t zero = 3) const {
    RunConfig result = config(name);
    result.model.hidden = {32};
    result.optimizer = {.name = "sgd", .lr = 0.05, .momentum = 0.9};
    result.parallel.zero = zero;
    result.parallel.weight_compression = weights;
    return result;
  }
  RunResult run_over_gloo(int ranks, const RunConfig& config, RunStart start = RunStart::kFresh) const {
    RunResult result;
    comm::run_ranks_as_threads(ranks,
                               [&](comm::Context& context) {
                                 const RunResult mine = run_training(config, context, {.start = start});
                                 if (context.is_main()) result = mine;
                               },
                               {.backend = "gloo", .timeout_s = 30});
    return result;
  }
  /// In one run, and in two with a resume.
  void expect_same_bits_resumed(int ranks, RunConfig whole) const {
    RunConfig part = whole;
    part.run.name += "-part";
    const std::string expected = run_over_gloo(ranks, whole).weights_xxh3;
    part.train.max_steps = 6;
    run_over_gloo(ranks, part);
    part.train.max_steps = 12;
    EXPECT_EQ(run_over_gloo(ranks, part, RunStart::kResume).weights_xxh3, expected) << whole.run.name;
  }
  static std::string refusal(const RunConfig& config) {
    try {
      resolve_plan(config, 2);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "none";
  }
};

TEST_F(GatheredTraining, ContinuesFromCheckpointWithSameBits) {
  for (const std::int64_t zero : {1, 2, 3}) {
    RunConfig config = gathered(text("run", zero), "int8", zero);
    config.parallel.compression = "sign";
    config.train.accumulation = 2;
    expect_same_bits_resumed(3, config);
  }
}

TEST_F(GatheredTraining, MixedPrecisionContinuesWithSameBits) {
  RunConfig config = gathered("bf16", "int8");
  config.train.precision = "bf16";
  expect_same_bits_resumed(2, config);
  config.run.name = "without";
  config.parallel.weight_compression = "none";
  EXPECT_NE(run_over_gloo(2, config).weights_xxh3, run_over_gloo(2, gathered("f32", "int8")).weights_xxh3);
}

TEST_F(GatheredTraining, ReachesTheAccuracyOfExactWeights) {
  for (const char* weights : {"none", "bf16", "fp16", "int8"}) {
    RunConfig config = gathered(weights, weights);
    config.train.epochs = 20;
    config.train.max_steps = 60;
    EXPECT_GT(run_over_gloo(2, config).evaluation->metric("accuracy").value, 0.95) << weights;
  }
}

TEST_F(GatheredTraining, PartsInFilesHaveBitsOfMemory) {
  RunConfig in_memory = gathered("memory", "int8"), in_files = gathered("files", "int8");
  in_files.offload.parameters = "files";
  EXPECT_EQ(run_over_gloo(2, in_files).weights_xxh3, run_over_gloo(2, in_memory).weights_xxh3);
}

TEST_F(GatheredTraining, ReportsNoEffectInCommonMemory) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const std::string found = run(2, gathered("int8", "int8")).weights_xxh3;
  const std::string said = testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("parallel.weight_compression = \"int8\" does nothing here"));
  EXPECT_EQ(found, run(2, gathered("none", "none")).weights_xxh3);
}

/// Each of two ranks sends half of its gradients and half of its weights, in the configured format.
TEST_F(GatheredTraining, TellsTheBytesThatItSends) {
  constexpr double kLarge = 784 * 32, kSmall = 32 + 320 + 10, kGradients = 4 * (kLarge + kSmall) / 2;
  const std::int64_t all = run_over_gloo(2, gathered("plain", "none", 2)).sent_bytes_of_step,
                     some = run_over_gloo(2, gathered("less", "int8", 2)).sent_bytes_of_step;
  EXPECT_NEAR(static_cast<double>(all), kGradients + 4 * (kLarge + kSmall) / 2, 0.1 * kGradients);
  EXPECT_NEAR(static_cast<double>(some), kGradients + (1.01 * kLarge + 4 * kSmall) / 2, 0.1 * kGradients);
}

TEST_F(GatheredTraining, IsRejectedWithReasonWhereUnsupported) {
  EXPECT_THAT(refusal(gathered("no", "int8", 0)),
              AllOf(HasSubstr("nothing is gathered"), HasSubstr("parallel.weight_compression = \"none\"")));
  RunConfig exact = gathered("no", "int8");
  exact.run.exact = true;
  EXPECT_THAT(refusal(exact), AllOf(HasSubstr("ranks that gather nothing round nothing"),
                                    HasSubstr("parallel.weight_compression = \"none\"")));
  EXPECT_THAT([&] { check_verifiable(resolve_plan(gathered("no", "int8"), 2)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("rounds the weights that ranks compute with")));
}

}  // namespace
}  // namespace trireme::train
