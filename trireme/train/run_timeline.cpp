#include "trireme/train/run_timeline.h"

#include <map>
#include <string_view>

#include "trireme/base/text.h"
#include "trireme/parallel/pipeline/timed_actions.h"
#include "trireme/schedule/timeline_page.h"

namespace trireme::train {
namespace {

constexpr std::size_t kMostSteps = 3;

/// When this rank did its first steps.
std::map<std::int64_t, parallel::TimeSpan> spans_of_steps(const telemetry::Trace& trace) {
  std::map<std::int64_t, parallel::TimeSpan> steps;
  trace.buffers().front()->for_each([&](const telemetry::TraceSpan& span) {
    if (std::string_view(span.category) != "step" || steps.size() == kMostSteps) return;
    steps[span.arguments[0].value] = {span.begin_ns, span.end_ns};
  });
  return steps;
}

/// Of all ranks one for each stage, the first, in the order of the stages.
schedule::TimedRanks first_of_stages(const schedule::TimedRanks& all, int stages) {
  schedule::TimedRanks ranks;
  for (std::size_t rank = 0; rank < all.size(); rank += all.size() / static_cast<std::size_t>(stages))
    ranks.push_back(all[rank]);
  return ranks;
}

}  // namespace

std::string timeline_of(const ParallelPlan& plan, comm::Context& context, const telemetry::Trace& trace,
                        const telemetry::AlignedClock& clock, const schedule::Program& program) {
  schedule::TimelinePage page{.title = plan.config().run.name, .program = program, .costs = {}, .steps = {}};
  std::vector<schedule::TimedRanks> steps;
  for (const auto& [number, span] : spans_of_steps(trace)) {
    const auto all = parallel::gather_actions(context.world(), parallel::actions_in(trace, span, clock));
    steps.push_back(first_of_stages(all, plan.pipeline_ranks()));
    page.steps.push_back({.name = text("step ", number), .ranks = steps.back()});
  }
  if (steps.empty()) return "";
  page.remark = text(plan.config().model.name, " on ", plan.config().data.name);
  page.costs = schedule::mean_costs(program, steps);
  return schedule::timeline_page(page);
}

}  // namespace trireme::train
