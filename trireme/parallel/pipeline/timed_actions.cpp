#include "trireme/parallel/pipeline/timed_actions.h"

#include <algorithm>
#include <iomanip>
#include <limits>
#include <sstream>
#include <string_view>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::parallel {
namespace {

std::string to_lines(const std::vector<schedule::TimedAction>& actions) {
  std::ostringstream lines;
  lines << std::setprecision(17);
  for (const schedule::TimedAction& each : actions)
    lines << schedule::to_text(each.action) << ' ' << each.start_s << ' ' << each.end_s << '\n';
  return std::move(lines).str();
}

std::vector<schedule::TimedAction> from_lines(const std::string& lines) {
  std::vector<schedule::TimedAction> actions;
  std::istringstream in(lines);
  std::string action;
  for (double start_s = 0, end_s = 0; in >> action >> start_s >> end_s;)
    actions.push_back({schedule::parse_action(action), start_s, end_s});
  return actions;
}

}  // namespace

std::vector<schedule::TimedAction> actions_in(const telemetry::Trace& trace, const TimeSpan& span,
                                              const telemetry::AlignedClock& clock) {
  std::vector<schedule::TimedAction> actions;
  std::int64_t waited_until_ns = 0;
  const auto seconds = [&](std::int64_t own_ns) {
    return 1e-9 * static_cast<double>(clock.of_rank_0(own_ns));
  };
  // The main thread's buffer. A span is added when it ends, so waits precede the action that contains them.
  trace.buffers().front()->for_each([&](const telemetry::TraceSpan& each) {
    const std::string_view category = each.category;
    if (category == "wait") waited_until_ns = each.end_ns;
    if (category != "action" || each.begin_ns < span.begin_ns || each.begin_ns >= span.end_ns) return;
    const std::int64_t begin_ns = std::max(each.begin_ns, std::min(waited_until_ns, each.end_ns));
    actions.push_back({schedule::parse_action(each.name), seconds(begin_ns), seconds(each.end_ns)});
  });
  return actions;
}

schedule::TimedRanks gather_actions(comm::Group& group, const std::vector<schedule::TimedAction>& mine) {
  schedule::TimedRanks ranks;
  double first_s = std::numeric_limits<double>::infinity();
  for (const std::string& lines : group.all_gather_text(to_lines(mine))) {
    ranks.push_back(from_lines(lines));
    for (const auto& each : ranks.back()) first_s = std::min(first_s, each.start_s);
  }
  for (auto& actions : ranks) {
    for (auto& each : actions) {
      each.start_s -= first_s;
      each.end_s -= first_s;
    }
  }
  return ranks;
}

}  // namespace trireme::parallel
