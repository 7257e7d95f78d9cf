#include "trireme/train/report/run_timeline.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <string_view>

#include "trireme/base/median.h"
#include "trireme/base/text.h"
#include "trireme/parallel/pipeline/timed_actions.h"
#include "trireme/schedule/simulate.h"
#include "trireme/schedule/timeline_page.h"

namespace trireme::train {
namespace {

constexpr std::size_t kMaxDrawn = 3;
constexpr std::size_t kMaxSteps = 50;
constexpr int kUnsettledSteps = 2;

/// Begin and end of this rank's steps in the timeline. `from_begin`: the trace begins with the first step of
/// the process.
std::map<std::int64_t, parallel::TimeSpan> spans_of_steps(const telemetry::Trace& trace, bool from_begin) {
  std::map<std::int64_t, parallel::TimeSpan> steps;
  trace.buffers().front()->for_each([&](const telemetry::TraceSpan& span) {
    if (std::string_view(span.category) == "step")
      steps[span.arguments[0].value] = {span.begin_ns, span.end_ns};
  });
  for (int i = 0; i < kUnsettledSteps && steps.size() > 1; ++i) {
    if (from_begin || steps.begin()->first <= kUnsettledSteps) steps.erase(steps.begin());
  }
  while (steps.size() > kMaxSteps) steps.erase(std::prev(steps.end()));
  return steps;
}

/// From the first begin of an action to the last end.
double seconds_of(const schedule::TimedRanks& ranks) {
  double begin = std::numeric_limits<double>::infinity(), end = -begin;
  for (const auto& actions : ranks) {
    for (const schedule::TimedAction& each : actions) {
      begin = std::min(begin, each.start_s);
      end = std::max(end, each.end_s);
    }
  }
  return std::max(0.0, end - begin);
}

/// "transformer.wte to transformer.h.1" for each stage; empty for a single stage.
std::vector<std::string> names_of_stages(const std::vector<int>& cuts,
                                         const std::vector<model::Layer>& layers) {
  std::vector<std::string> names;
  std::size_t from = 0;
  for (std::size_t stage = 0; !cuts.empty() && stage <= cuts.size(); ++stage) {
    const std::size_t to = stage < cuts.size() ? static_cast<std::size_t>(cuts[stage]) : layers.size();
    const std::string &first = layers[from].name, &last = layers[to - 1].name;
    names.push_back(first == last ? first : text(first, " to ", last));
    from = to;
  }
  return names;
}

}  // namespace

RunTimeline timeline_of(const Trainer& trainer, comm::Context& context, const telemetry::Trace& trace,
                        const telemetry::AlignedClock& clock) {
  const ParallelPlan& plan = trainer.plan();
  const schedule::Program& program = trainer.pipeline().program();
  schedule::TimelinePage page{.title = plan.config().run.name, .program = program, .costs = {}, .steps = {}};
  const RunOptions& run = plan.config().run;
  const bool from_begin = !run.trace.empty() && run.trace_steps.empty();
  std::vector<schedule::TimedRanks> steps;
  std::vector<double> seconds;
  for (const auto& [number, span] : spans_of_steps(trace, from_begin)) {
    steps.push_back(parallel::gather_actions(context.world(), parallel::actions_in(trace, span, clock)));
    seconds.push_back(seconds_of(steps.back()));
    if (page.steps.size() < kMaxDrawn)
      page.steps.push_back({.name = text("step ", number), .ranks = steps.back()});
  }
  if (steps.empty()) return {};
  page.remark = text(plan.config().model.name, " on ", plan.config().data.name);
  page.stages = names_of_stages(plan.cuts(), trainer.layers());
  page.costs = schedule::mean_costs(program, steps);
  return {.page = schedule::timeline_page(page),
          .steps = steps.size(),
          .measured_s = median(seconds),
          .simulated_s = schedule::simulate(program, page.costs).makespan};
}

}  // namespace trireme::train
