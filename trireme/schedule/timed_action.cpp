#include "trireme/schedule/timed_action.h"

#include <algorithm>
#include <limits>

namespace trireme::schedule {
namespace {

struct Mean {
  double sum = 0;
  int count = 0;

  void add(double value) {
    sum += value;
    ++count;
  }
  double value() const { return count == 0 ? 0 : sum / count; }
};

struct StageMeans {
  Mean forward, backward, weight, update;
};

void add(std::vector<StageMeans>& stages, const TimedAction& timed) {
  StageMeans& stage = stages[static_cast<std::size_t>(timed.action.stage)];
  const double duration = timed.end_s - timed.start_s;
  if (timed.action.kind == ActionKind::kForward) stage.forward.add(duration);
  if (makes_input_gradient(timed.action.kind)) stage.backward.add(duration);
  if (timed.action.kind == ActionKind::kBackwardWeight) stage.weight.add(duration);
  if (timed.action.kind == ActionKind::kStep) stage.update.add(duration);
}

}  // namespace

bool is_work(const Action& action) {
  return is_compute(action.kind) || action.kind == ActionKind::kRecompute;
}

TimedRanks timed(const Program& program, const Timeline& timeline) {
  TimedRanks ranks(program.ranks.size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (std::size_t i = 0; i < program.ranks[rank].size(); ++i) {
      const Action& action = program.ranks[rank][i];
      const Span& span = timeline.spans[rank][i];
      if (is_transfer(action.kind)) continue;
      if (is_work(action) || span.end > span.start) ranks[rank].push_back({action, span.start, span.end});
    }
  }
  return ranks;
}

Costs mean_costs(const Program& program, const std::vector<TimedRanks>& steps) {
  std::vector<StageMeans> means(static_cast<std::size_t>(program.num_stages));
  for (const TimedRanks& ranks : steps) {
    for (const auto& actions : ranks) {
      for (const TimedAction& action : actions) {
        const bool known = action.action.stage >= 0 && action.action.stage < program.num_stages;
        if (known) add(means, action);
      }
    }
  }
  Costs costs;
  for (const StageMeans& stage : means) {
    costs.stages.push_back({.forward = stage.forward.value(),
                            .backward_input = stage.backward.value(),
                            .backward_weight = stage.weight.value(),
                            .update = stage.update.value()});
  }
  return costs;
}

Span extent(const TimedRanks& ranks) {
  Span whole{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  for (const auto& actions : ranks) {
    for (const TimedAction& each : actions) {
      if (!is_work(each.action)) continue;
      whole.start = std::min(whole.start, each.start_s);
      whole.end = std::max(whole.end, each.end_s);
    }
  }
  return whole.start <= whole.end ? whole : Span{};
}

std::vector<double> bubble_shares(const TimedRanks& ranks) {
  const Span whole = extent(ranks);
  const double length = whole.end - whole.start;
  std::vector<double> shares;
  for (const auto& actions : ranks) {
    double busy = 0, until = whole.start;
    for (const TimedAction& each : actions) {
      if (!is_work(each.action)) continue;
      busy += std::max(0.0, each.end_s - std::max(each.start_s, until));
      until = std::max(until, each.end_s);
    }
    shares.push_back(length > 0 ? 1 - busy / length : 0);
  }
  return shares;
}

}  // namespace trireme::schedule
