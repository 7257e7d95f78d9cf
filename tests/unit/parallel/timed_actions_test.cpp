#include "trireme/parallel/pipeline/timed_actions.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <mutex>

#include "trireme/base/clock.h"
#include "trireme/comm/context.h"
#include "trireme/parallel/pipeline/pipeline.h"

namespace trireme::parallel {
namespace {

using schedule::TimedAction;

telemetry::TraceSpan span(const char* category, const char* name, std::int64_t begin_ns,
                          std::int64_t end_ns) {
  return {.begin_ns = begin_ns, .end_ns = end_ns, .category = category, .name = name};
}

const telemetry::AlignedClock kSameClock{telemetry::ClockSample{}};

TEST(TimedActions, ExcludeWaitingTime) {
  telemetry::Trace trace;
  for (const auto& each : {span("action", "0F0", 1'000, 3'000), span("wait", "wait", 3'100, 3'500),
                           span("action", "0B0", 3'000, 5'000), span("comm", "send", 5'100, 5'200),
                           span("action", "0F1", 5'000, 6'000)})
    trace.main().add(each);
  const auto actions = actions_in(trace, {.begin_ns = 1'000, .end_ns = 6'000}, kSameClock);
  ASSERT_EQ(actions.size(), 3u);
  EXPECT_EQ(schedule::to_text(actions[1].action), "0B0");
  EXPECT_NEAR(actions[1].start_s, 3.5e-6, 1e-12);
  EXPECT_NEAR(actions[1].end_s, 5e-6, 1e-12);
  EXPECT_NEAR(actions[2].start_s, 5e-6, 1e-12);
}

TEST(TimedActions, BeginInSpanOnRankZeroClock) {
  telemetry::Trace trace;
  for (const auto& each : {span("action", "0F0", 1'000, 2'000), span("action", "0F1", 2'000, 3'000),
                           span("action", "0F2", 3'000, 4'000)})
    trace.main().add(each);
  const telemetry::AlignedClock clock({.at_ns = 0, .offset_ns = 500});
  const auto actions = actions_in(trace, {.begin_ns = 2'000, .end_ns = 3'000}, clock);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(schedule::to_text(actions[0].action), "0F1");
  EXPECT_NEAR(actions[0].start_s, 2.5e-6, 1e-12);
}

/// A step of two stages with a slow second stage. All ranks get the times.
TEST(TimedActions, AreGatheredFromPipelineWithoutWait) {
  constexpr double kSlow_s = 0.02;
  const auto slow = [](const at::Tensor& output, const at::Tensor& target) {
    for (const Deadline end = Deadline::after_s(kSlow_s); !end.expired();) {
    }
    return torch::mse_loss(output, target);
  };
  std::mutex mutex;
  std::vector<schedule::TimedRanks> gathered;
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    telemetry::Trace trace;
    context.set_trace(&trace);
    trace.begin_step(1);
    const torch::nn::Sequential chain(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
    Pipeline pipe(context, model::layers_of(chain), {.schedule = "gpipe", .num_microbatches = 2});
    const std::int64_t begin_ns = now_ns();
    pipe.step(torch::ones({4, 4}), torch::ones({4, 4}), slow);
    const auto ranks = gather_actions(
        context.world(), actions_in(trace, {.begin_ns = begin_ns, .end_ns = now_ns()}, kSameClock));
    const std::lock_guard lock(mutex);
    gathered.push_back(ranks);
    context.set_trace(nullptr);
  });
  for (const schedule::TimedRanks& ranks : gathered) {
    ASSERT_EQ(ranks.size(), 2u);
    double first_s = 1, last_forward_end_s = 0, backward_s = -1;
    for (const auto& actions : ranks)
      for (const TimedAction& each : actions) first_s = std::min(first_s, each.start_s);
    EXPECT_EQ(first_s, 0);
    for (const TimedAction& each : ranks[1])
      if (schedule::to_text(each.action) == "1F1") last_forward_end_s = each.end_s;
    for (const TimedAction& each : ranks[0])
      if (schedule::to_text(each.action) == "0B0") backward_s = each.start_s;
    EXPECT_GE(last_forward_end_s, 2 * kSlow_s);
    // Rank 0 waits in 0B0 for the whole time.
    EXPECT_GE(backward_s, last_forward_end_s);
  }
}

}  // namespace
}  // namespace trireme::parallel
