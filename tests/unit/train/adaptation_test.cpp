// Runs that change settings during training: the controller by itself, and with a slow rank.
#include "trireme/train/parts/adaptation.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/unit/train/slow_samples.h"
#include "tests/unit/train/small_runs.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr auto kFirstWindow = static_cast<std::int64_t>(AdaptiveController::kWindow);

/// The change of step time that a controller must measure, in seconds, with the knob on. The estimate of the
/// knob may differ, or be absent.
struct SimulatedKnob final : Knob {
  SimulatedKnob(std::string called, double gain_s, std::optional<double> promised_s)
      : called(std::move(called)), gain_s(gain_s), promised_s(promised_s) {}
  std::string name() const override { return called; }
  std::string value() const override { return on ? "on" : "off"; }
  std::optional<Proposal> propose(std::span<const StepReport> /*window*/, double step_s) override {
    ++asked;
    if (on || !proposes) return std::nullopt;
    return Proposal{
        .to = "on", .reason = "it may help", .estimated_s = promised_s ? step_s - *promised_s : 0};
  }
  void apply(std::int64_t from) override {
    on_from = from;
    on = true;
  }
  void revert(std::int64_t from) override {
    on_from = from;
    on = false;
  }
  void start_over(std::int64_t /*step*/) override { on = false; }

  const std::string called;
  const double gain_s;
  const std::optional<double> promised_s;
  bool on = false, proposes = true;
  std::int64_t on_from = 0;
  int asked = 0;
};

struct SimulatedGain {
  std::string knob;
  double gain_s;
  std::optional<double> promised_s;
};
constexpr std::optional<double> kUnknown;

/// Steps of 100 ms, with or without noise. Each time is reported one step late.
class SimulatedSteps {
 public:
  explicit SimulatedSteps(const std::vector<SimulatedGain>& gains, double noise_s = 0) : noise_s_(noise_s) {
    std::vector<std::unique_ptr<Knob>> knobs;
    for (const auto& [name, gain_s, promised_s] : gains) {
      auto knob = std::make_unique<SimulatedKnob>(name, gain_s, promised_s);
      knobs_.push_back(knob.get());
      knobs.push_back(std::move(knob));
    }
    controller_.emplace(std::move(knobs));
  }

  std::vector<Decision> go(std::int64_t steps) {
    std::vector<Decision> decisions;
    for (const std::int64_t end = step_ + steps; step_ < end;) {
      double step_s = 0.1 + noise_s_ * random_.uniform();
      for (const SimulatedKnob* knob : knobs_) {
        const bool holds = step_ >= knob->on_from ? knob->on : !knob->on;
        if (holds) step_s -= knob->gain_s;
      }
      ++step_;
      const StepReport report{.step = step_, .samples = batch, .full_batch = batch, .step_s = step_s};
      for (const Decision& decision : controller_->observe(report, step_ + 4)) decisions.push_back(decision);
    }
    return decisions;
  }
  SimulatedKnob& knob(std::size_t number) { return *knobs_[number]; }
  AdaptiveController& controller() { return *controller_; }

  std::int64_t batch = 64;

 private:
  const double noise_s_;
  std::vector<SimulatedKnob*> knobs_;
  std::optional<AdaptiveController> controller_;
  Random random_{7};
  std::int64_t step_ = 0;
};

std::vector<std::string> words_of(const std::vector<Decision>& decisions) {
  std::vector<std::string> words;
  for (const Decision& each : decisions)
    words.push_back(text(each.knob, " ", each.from, " -> ", each.to, " ", name_of(each.verdict)));
  return words;
}

TEST(AdaptiveController, KeepsChangesThatShortenSteps) {
  SimulatedSteps steps({{"good", 0.02, 0.02}});
  const std::vector<Decision> decisions = steps.go(200);
  EXPECT_THAT(words_of(decisions), testing::ElementsAre("good off -> on tried", "good off -> on kept"));
  EXPECT_NEAR(decisions[1].before_s, 0.1, 1e-9);
  EXPECT_NEAR(decisions[1].after_s, 0.08, 1e-9);
  EXPECT_NEAR(decisions[1].estimated_s, 0.08, 1e-9);
  EXPECT_EQ(decisions[0].step, kFirstWindow + AdaptiveController::kSettling);
  EXPECT_THAT(decisions[1].reason, HasSubstr("a step took 80 ms, and before 100 ms"));
}

TEST(AdaptiveController, RevertsUselessChangeAndWaitsLonger) {
  SimulatedSteps steps({{"useless", 0, 0.01}});
  const std::vector<Decision> decisions = steps.go(800);
  ASSERT_GE(decisions.size(), 6U);
  std::vector<std::int64_t> tried;
  for (std::size_t i = 0; i < decisions.size(); ++i) {
    EXPECT_EQ(decisions[i].verdict, i % 2 == 0 ? Verdict::kTried : Verdict::kReverted) << i;
    if (i % 2 == 0) tried.push_back(decisions[i].step);
  }
  EXPECT_EQ(decisions[1].from, "on");
  EXPECT_EQ(decisions[1].to, "off");
  for (std::size_t i = 2; i < tried.size(); ++i)
    EXPECT_GT(tried[i] - tried[i - 1], tried[i - 1] - tried[i - 2]) << "attempt " << i;
}

TEST(AdaptiveController, TakesBackAGainWithinTheSpread) {
  SimulatedSteps quiet({{"small", 0.004, 0.05}}), loud({{"small", 0.004, 0.05}}, 0.05);
  EXPECT_EQ(quiet.go(60).back().verdict, Verdict::kKept);
  EXPECT_EQ(loud.go(60).back().verdict, Verdict::kReverted);
}

TEST(AdaptiveController, ChangesOneThingAtATime) {
  SimulatedSteps steps({{"first", 0.02, 0.02}, {"second", 0.01, 0.01}});
  EXPECT_THAT(words_of(steps.go(400)),
              testing::ElementsAre("first off -> on tried", "first off -> on kept", "second off -> on tried",
                                   "second off -> on kept"));
}

TEST(AdaptiveController, LetsAnotherKnobGoWhileOneWaits) {
  SimulatedSteps steps({{"useless", 0, 0.03}, {"good", 0.02, 0.02}});
  const std::vector<std::string> words = words_of(steps.go(120));
  ASSERT_GE(words.size(), 4U);
  EXPECT_EQ(words[1], "useless on -> off reverted");
  EXPECT_EQ(words[2], "good off -> on tried");
  EXPECT_EQ(words[3], "good off -> on kept");
}

TEST(AdaptiveController, TriesLargestEstimatedGainFirst) {
  SimulatedSteps steps({{"unknown", 0.03, kUnknown}, {"small", 0.01, 0.01}, {"large", 0.02, 0.02}});
  EXPECT_THAT(
      words_of(steps.go(400)),
      testing::ElementsAre("large off -> on tried", "large off -> on kept", "small off -> on tried",
                           "small off -> on kept", "unknown off -> on tried", "unknown off -> on kept"));
}

TEST(AdaptiveController, SaysOnceThatEstimateIsTooSmall) {
  SimulatedSteps steps({{"tiny", 0.05, 0.0019}, {"good", 0.02, 0.02}});
  const std::vector<Decision> decisions = steps.go(400);
  EXPECT_THAT(words_of(decisions),
              testing::ElementsAre("tiny off -> on skipped", "good off -> on tried", "good off -> on kept",
                                   "tiny off -> on tried", "tiny off -> on kept"))
      << "of shorter steps it is a share that counts";
  EXPECT_THAT(decisions[0].reason, HasSubstr("an estimated gain of 1.9 ms cannot be measured; a gain counts "
                                             "from 2 ms on: it may help"));
  EXPECT_NEAR(decisions[0].estimated_s, 0.0981, 1e-9);
  EXPECT_EQ(decisions[0].step, decisions[1].step);
}

TEST(AdaptiveController, SkipsEstimatesBelowTheSpread) {
  SimulatedSteps loud({{"small", 0.004, 0.004}}, 0.05);
  EXPECT_THAT(words_of(loud.go(300)), testing::ElementsAre("small off -> on skipped"));
  EXPECT_FALSE(loud.knob(0).on);
}

TEST(AdaptiveController, DoesNotJudgeStepsOfAnotherBatch) {
  SimulatedSteps steps({{"good", 0.02, 0.02}});
  ASSERT_EQ(steps.go(26).size(), 1U);
  steps.batch = 128;
  const std::vector<Decision> decisions = steps.go(10);
  ASSERT_EQ(decisions.size(), 1U);
  EXPECT_EQ(decisions[0].verdict, Verdict::kReverted);
  EXPECT_THAT(decisions[0].reason, HasSubstr("the size of the batch changed before the comparison ended"));
}

/// The batch changes before the first step after the trial whose time counts.
TEST(AdaptiveController, ComparesOnlyStepsOfOneBatch) {
  SimulatedSteps steps({{"good", 0.02, 0.02}});
  ASSERT_EQ(steps.go(18).size(), 1U);
  steps.batch = 128;
  const std::vector<Decision> decisions = steps.go(30);
  ASSERT_GE(decisions.size(), 1U);
  EXPECT_EQ(decisions[0].verdict, Verdict::kReverted);
  EXPECT_THAT(decisions[0].reason, HasSubstr("the size of the batch changed"));
}

TEST(AdaptiveController, DoesNotCountTheEndsOfEpochs) {
  SimulatedSteps steps({{"good", 0.02, 0.02}});
  for (std::int64_t step = 1; step < 100; ++step) {
    const StepReport report{.step = step, .samples = 7, .full_batch = 64, .step_s = 0.1};
    EXPECT_TRUE(steps.controller().observe(report, step + 4).empty());
  }
}

TEST(AdaptiveController, StartsOverAsANewRun) {
  SimulatedSteps steps({{"good", 0.02, 0.02}});
  steps.go(100);
  ASSERT_TRUE(steps.knob(0).on);
  steps.controller().start_over(100);
  EXPECT_FALSE(steps.knob(0).on);
}

class AdaptingRuns : public SmallRuns {
 protected:
  RunConfig adapting(const std::string& name) const {
    RunConfig config = this->config(name);
    config.train = {.epochs = 30, .max_steps = 70, .global_batch = 48, .accumulation = 2, .adapt = true};
    config.optimizer = {.name = "sgd", .lr = 0.05, .momentum = 0.9};
    config.data.workers = 1;
    config.data.prefetch = 2;
    config.checkpoint.every_steps = 0;
    return config;
  }
  /// Results of all ranks, one of which is slow.
  std::vector<RunResult> with_slow_rank(const RunConfig& config, int slow,
                                        RunStart start = RunStart::kFresh) {
    std::vector<RunResult> results(2);
    comm::run_ranks_as_threads(2, [&](comm::Context& context) {
      data::DataSource data = data::open_data(config.data);
      if (context.rank() == slow) data.train = std::make_shared<SlowSamples>(data::indexed(data.train));
      results[static_cast<std::size_t>(context.rank())] =
          run_training(config, context, {.start = start, .data = data});
    });
    return results;
  }
};

TEST_F(AdaptingRuns, GiveSlowRankFewerSamplesAndReason) {
  RunConfig alone = adapting("alone");
  alone.train.accumulation = 4;
  const RunResult serial = run(1, alone);
  const std::vector<RunResult> ranks = with_slow_rank(adapting("adapted"), 1);
  const RunResult& result = ranks[0];
  ASSERT_GE(result.decisions.size(), 2U);
  EXPECT_EQ(result.decisions[0].knob, "shares of replicas");
  EXPECT_EQ(result.decisions[0].from, "24 24");
  EXPECT_EQ(result.decisions[0].verdict, Verdict::kTried);
  EXPECT_EQ(result.decisions[1].verdict, Verdict::kKept) << describe(result.decisions[1]);
  EXPECT_LT(result.decisions[1].after_s, result.decisions[1].before_s);
  EXPECT_LT(result.loading.samples[1], 24);
  EXPECT_EQ(words_of(ranks[1].decisions), words_of(result.decisions)) << "all ranks decide the same";
  EXPECT_NEAR(result.train_loss, serial.train_loss, 1e-5 * serial.train_loss) << "the same mean gradients";
  const std::string metrics = file("adapted", "metrics.jsonl");
  EXPECT_EQ(num_lines(metrics, R"("event":"adapt")"), result.decisions.size());
  EXPECT_THAT(metrics, AllOf(HasSubstr(R"("knob":"shares of replicas","verdict":"kept","from":"24 24")"),
                             HasSubstr(R"("after_step_s":)")));
  EXPECT_THAT(file("adapted", "summary.json"), AllOf(HasSubstr(R"("adapt_kept": )"), HasSubstr("24 24 -> ")));
  EXPECT_THAT(file("adapted", "report.html"),
              AllOf(HasSubstr("Decisions of train.adapt"), HasSubstr("shares of replicas 24 24 -&gt; ")));
  EXPECT_THAT(file("adapted", "console.log"), HasSubstr("adapt: shares of replicas 24 24 -> "));
}

TEST_F(AdaptingRuns, ThatResumeMeasureAnew) {
  RunConfig config = adapting("resumed");
  config.train.max_steps = 30;
  config.checkpoint.every_steps = 30;
  with_slow_rank(config, 1);
  config.train.max_steps = 90;
  const std::vector<RunResult> ranks = with_slow_rank(config, 1, RunStart::kResume);
  ASSERT_FALSE(ranks[0].decisions.empty());
  EXPECT_EQ(ranks[0].decisions[0].from, "24 24") << "equal shares again";
  EXPECT_GE(ranks[0].decisions[0].step, 30 + kFirstWindow);
  EXPECT_EQ(words_of(ranks[1].decisions), words_of(ranks[0].decisions));
}

TEST_F(AdaptingRuns, AreRejectedForExactRuns) {
  RunConfig config = adapting("exact");
  config.run.exact = true;
  EXPECT_THAT([&] { resolve_plan(config, 2); },
              ThrowsMessage<InvalidArgument>(HasSubstr("train.adapt = true: it follows measured times")));
}

}  // namespace
}  // namespace trireme::train
