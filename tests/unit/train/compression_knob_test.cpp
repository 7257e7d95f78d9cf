// Compression of gradients as a setting that changes during a run: the knob alone, and runs.
#include "trireme/train/parts/internal/compression_knob.h"

#include <gmock/gmock.h>

#include "tests/unit/train/compressed_runs.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct KnobCase {
  explicit KnobCase(ExchangeSeconds exchange) : knob(hook, "sign", exchange) {}
  auto propose(double step_s, std::int64_t full_batch = 64) {
    const std::vector<StepReport> window(1, {.full_batch = full_batch});
    return knob.propose(window, step_s);
  }
  void switch_off() {
    ASSERT_TRUE(propose(0.1));
    knob.apply(0);
    knob.begin_step(0);
  }
  const std::shared_ptr<parallel::SwitchedHook> hook =
      std::make_shared<parallel::SwitchedHook>(parallel::CompressionOptions{.name = "sign"});
  CompressionKnob knob;
};

TEST(CompressionKnob, ProposesNoneForCostlyCodec) {
  KnobCase slow_codec({.compressed_s = 0.03, .plain_s = 0.01}),
      slow_link({.compressed_s = 0.01, .plain_s = 0.03});
  const auto proposal = slow_codec.propose(0.1);
  ASSERT_TRUE(proposal);
  EXPECT_EQ(slow_codec.knob.value(), "sign");
  EXPECT_EQ(proposal->to, "none");
  EXPECT_NEAR(proposal->estimated_s, 0.08, 1e-9);
  EXPECT_THAT(proposal->reason, HasSubstr("took 30 ms with it, and 10 ms without"));
  EXPECT_FALSE(slow_link.propose(0.1));
}

TEST(CompressionKnob, SwitchesAtTheStepOfTheDecision) {
  KnobCase run({.compressed_s = 0.03, .plain_s = 0.01});
  ASSERT_TRUE(run.propose(0.1));
  run.knob.apply(20);
  EXPECT_EQ(run.knob.value(), "none");
  run.knob.begin_step(19);
  EXPECT_TRUE(run.hook->is_compressing());
  run.knob.begin_step(20);
  EXPECT_FALSE(run.hook->is_compressing());
  run.knob.revert(40);
  run.knob.begin_step(39);
  EXPECT_FALSE(run.hook->is_compressing());
  run.knob.begin_step(40);
  EXPECT_TRUE(run.hook->is_compressing());
}

TEST(CompressionKnob, ProposesCodecAgainForLongSteps) {
  KnobCase run({.compressed_s = 0.03, .plain_s = 0.01});
  run.switch_off();
  EXPECT_FALSE(run.propose(0.08));
  EXPECT_FALSE(run.propose(0.11));
  EXPECT_FALSE(run.propose(0.16, 128)) << "steps of another batch";
  EXPECT_FALSE(run.propose(0.08)) << "back again";
  const auto proposal = run.propose(0.2);
  ASSERT_TRUE(proposal);
  EXPECT_EQ(proposal->to, "sign");
  EXPECT_EQ(proposal->estimated_s, 0) << "not known";
  EXPECT_THAT(proposal->reason, HasSubstr("a step takes 200 ms without it, and took 80 ms before"));
}

/// The controller may try another setting first.
TEST(CompressionKnob, ProposesCodecUntilItIsTried) {
  KnobCase run({.compressed_s = 0.03, .plain_s = 0.01});
  run.switch_off();
  EXPECT_FALSE(run.propose(0.08));
  EXPECT_TRUE(run.propose(0.2));
  EXPECT_TRUE(run.propose(0.2)) << "nothing was tried";
  run.knob.apply(40);
  run.knob.revert(60);
  EXPECT_FALSE(run.propose(0.2)) << "the trial did not help";
}

TEST(CompressionKnob, StartsOverWithTheConfiguredCodec) {
  KnobCase run({.compressed_s = 0.03, .plain_s = 0.01});
  run.switch_off();
  run.knob.start_over(40);
  EXPECT_EQ(run.knob.value(), "sign");
  EXPECT_TRUE(run.hook->is_compressing());
}

/// Of steps without compression; 0: none.
std::int64_t first_try(const std::vector<Decision>& decisions) {
  for (const Decision& each : decisions) {
    if (each.knob == "compression of gradients" && each.verdict == Verdict::kTried && each.to == "none")
      return each.from_step;
  }
  return 0;
}

/// Of large layers and few samples, so that an exchange is most of a step. In one memory a codec that looks
/// for the largest elements takes many times as long as the sum.
class SwitchingRuns : public CompressedTraining {
 protected:
  RunConfig switching(const std::string& name, const std::string& compression) const {
    RunConfig config = compressed(name, compression);
    config.model.hidden = {512, 512};
    config.optimizer = {.name = "sgd", .lr = 0.01, .momentum = 0};
    config.train = {.epochs = 1000, .max_steps = 4000, .global_batch = 4, .adapt = true};
    config.checkpoint.every_steps = 0;
    config.eval.every_steps = 40;
    return config;
  }
  /// Until an evaluation some steps after the first one without compression: a busy machine hides gains for
  /// a while.
  std::vector<RunResult> on_two_ranks(const RunConfig& config, RunStart start = RunStart::kFresh) {
    std::vector<RunResult> results(2);
    comm::run_ranks_as_threads(2, [&](comm::Context& context) {
      std::int64_t tried = 0;
      RunPlan plan{.start = start};
      plan.callbacks.on_step = [&](const StepReport& report) {
        if (tried == 0) tried = first_try(report.decisions);
      };
      plan.callbacks.on_evaluation = [&](std::int64_t step, const Evaluation&) {
        return tried > 0 && step > tried + 2 ? RunControl::kStop : RunControl::kContinue;
      };
      results[static_cast<std::size_t>(context.rank())] = run_training(config, context, plan);
    });
    return results;
  }
};

std::vector<std::string> all_decisions(const RunResult& result) {
  std::vector<std::string> words;
  for (const Decision& each : result.decisions)
    words.push_back(
        text(each.step, " ", each.knob, " ", each.from, " -> ", each.to, " ", name_of(each.verdict)));
  return words;
}

/// Of the steps in metrics.jsonl.
std::vector<std::int64_t> sent_bytes_in(const std::string& metrics) {
  constexpr std::string_view kField = R"("sent_bytes":)";
  std::vector<std::int64_t> sent;
  for (std::size_t at = metrics.find(kField); at != std::string::npos; at = metrics.find(kField, at + 1))
    sent.push_back(std::stoll(metrics.substr(at + kField.size())));
  return sent;
}

TEST_F(SwitchingRuns, TryWithoutCostlyCodec) {
  const std::vector<RunResult> ranks = on_two_ranks(switching("switched", "top-k"));
  const std::int64_t tried = first_try(ranks[0].decisions);
  ASSERT_GT(tried, 0) << testing::PrintToString(all_decisions(ranks[0]));
  EXPECT_EQ(all_decisions(ranks[1]), all_decisions(ranks[0])) << "all ranks decide the same";
  const std::string metrics = file("switched", "metrics.jsonl");
  EXPECT_THAT(metrics,
              AllOf(HasSubstr(R"("knob":"compression of gradients","verdict":"tried","from":"top-k")"),
                    HasSubstr(R"("estimated_step_s":)")));
  const std::vector<std::int64_t> sent = sent_bytes_in(metrics);
  const auto first = static_cast<std::size_t>(tried) - 1;
  ASSERT_GT(sent.size(), first);
  EXPECT_EQ(sent[first - 1], sent[0]);
  EXPECT_GT(sent[first], 10 * sent[0]) << "all bytes are sent from step " << tried << " on";
}

TEST_F(SwitchingRuns, ResumeWithConfiguredCodec) {
  RunConfig config = switching("resumed", "top-k");
  config.checkpoint.every_steps = 40;
  const std::int64_t steps = on_two_ranks(config)[0].steps;
  EXPECT_FALSE(sums_of_kept("resumed").empty()) << "residuals are in the checkpoint";
  config.train.max_steps = steps + 10;
  const std::vector<RunResult> ranks = on_two_ranks(config, RunStart::kResume);
  EXPECT_EQ(ranks[0].steps, steps + 10);
  const std::vector<std::int64_t> sent = sent_bytes_in(file("resumed", "metrics.jsonl"));
  ASSERT_GE(sent.size(), 10U);
  for (std::size_t i = sent.size() - 10; i < sent.size(); ++i) EXPECT_EQ(sent[i], sent[0]) << i;
}

TEST_F(SwitchingRuns, KeepCodecThatHasTheMomentum) {
  RunConfig config = switching("momentum", "dgc");
  config.train.max_steps = 60;
  const std::vector<RunResult> ranks = on_two_ranks(config);
  EXPECT_THAT(all_decisions(ranks[0]), testing::Not(testing::Contains(HasSubstr("compression"))));
}

}  // namespace
}  // namespace trireme::train
