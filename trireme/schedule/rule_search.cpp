#include "trireme/schedule/internal/rule_search.h"

#include <algorithm>
#include <optional>

#include "trireme/base/error.h"

namespace trireme::schedule {
namespace {

constexpr double kSlack = 1e-9;
constexpr int kMaxRounds = 3;
constexpr std::size_t kMaxPolishedActions = 8'000'000;  // simulated in total; under a second
constexpr std::size_t kMaxPolishedOrders = 4;

/// 0 to `last` in equal steps.
std::vector<double> steps(int count, double last) {
  std::vector<double> values;
  for (int i = 0; i <= count; ++i) values.push_back(last * i / count);
  return values;
}

std::size_t num_actions(const Program& order) {
  std::size_t count = 0;
  for (const std::vector<Action>& actions : order.ranks) {
    count += static_cast<std::size_t>(std::count_if(actions.begin(), actions.end(), [](const Action& action) {
      return action.kind != ActionKind::kIdle;
    }));
  }
  return count;
}

/// The objective of polish(): the cost, then the sum of the ends of all actions but W, which no rank waits
/// for.
struct Merit {
  double cost;
  double ends;
  bool operator<(const Merit& other) const {
    const double slack = other.cost * kSlack;
    if (cost < other.cost - slack) return true;
    return cost < other.cost + slack && ends < other.ends * (1 - kSlack);
  }
};

Merit merit_of(const Program& order, const Timeline& timeline) {
  Merit merit{timeline.cost, 0};
  for (std::size_t r = 0; r < order.ranks.size(); ++r) {
    for (std::size_t i = 0; i < order.ranks[r].size(); ++i) {
      if (order.ranks[r][i].kind != ActionKind::kBackwardWeight) merit.ends += timeline.spans[r][i].end;
    }
  }
  return merit;
}

/// Micro-batches of a stage stay in order, and so do the actions of one micro-batch.
bool may_swap(const Action& first, const Action& second) {
  return !first.joined && !second.joined && first.microbatch != second.microbatch &&
         (first.stage != second.stage || first.kind != second.kind) && first.kind != ActionKind::kIdle &&
         second.kind != ActionKind::kIdle;
}

/// Empty if the order deadlocks.
std::optional<Timeline> try_simulate(const Program& order, const Costs& costs) {
  try {
    return simulate(order, costs);
  } catch (const InvalidArgument&) {
    return std::nullopt;
  }
}

}  // namespace

void RuleSearch::consider(Program order) {
  const Timeline timeline = simulate(order, costs_);
  if (!fits(timeline)) return;
  const auto place = std::find_if(best_.begin(), best_.end(), [&](const Found& found) {
    return timeline.cost < found.cost * (1 - kSlack);
  });
  best_.insert(place, {timeline.cost, without_idle(std::move(order))});
  if (best_.size() > kMaxPolishedOrders) best_.pop_back();
}

bool RuleSearch::fits(const Timeline& timeline) const {
  return *std::max_element(timeline.peak_memory.begin(), timeline.peak_memory.end()) <=
         memory_limit_ + kSlack;
}

void RuleSearch::polish(Found& found, std::size_t budget) const {
  Program& order = found.order;
  Merit now = merit_of(order, simulate(order, costs_));
  std::size_t tried = 0;
  for (bool better = true; better && tried < budget;) {
    better = false;
    for (std::vector<Action>& actions : order.ranks) {
      for (std::size_t i = actions.size() - 1; i-- > 0 && tried < budget;) {
        if (!may_swap(actions[i], actions[i + 1])) continue;
        std::swap(actions[i], actions[i + 1]);
        ++tried;
        const std::optional<Timeline> timeline = try_simulate(order, costs_);
        if (timeline && fits(*timeline) && merit_of(order, *timeline) < now) {
          now = merit_of(order, *timeline);
          better = true;
        } else {
          std::swap(actions[i], actions[i + 1]);
        }
      }
    }
  }
  found.cost = now.cost;
}

void RuleSearch::try_rules(const GreedyRules& rules) {
  Program order = shape_;
  order.ranks = greedy_order(homes, shape_.num_microbatches, costs_, rules);
  const std::size_t complete = std::size_t{3} * static_cast<std::size_t>(shape_.num_stages) *
                               static_cast<std::size_t>(shape_.num_microbatches);
  if (num_actions(order) != complete) return;
  const double cost = simulate(order, costs_).cost;
  if (found_ && cost >= cost_ * (1 - kSlack)) return;
  rules_ = rules;
  cost_ = cost;
  found_ = true;
  consider(std::move(order));
}

template <class Value>
void RuleSearch::improve(Value GreedyRules::*rule, const std::vector<Value>& values) {
  const GreedyRules start = rules_;
  for (const Value& value : values) {
    GreedyRules rules = start;
    rules.*rule = value;
    try_rules(rules);
  }
}

Program RuleSearch::run() {
  const std::vector<double> shares = steps(10, 1);
  const std::vector<double> fine_shares = steps(32, 1);
  for (const std::vector<int>& most : in_flight) {
    for (const bool forward_first : {true, false}) {
      found_ = false;
      rules_ = {.memory_limit = memory_limit_, .max_in_flight = most, .forward_before_weight = forward_first};
      try_rules(rules_);
      double before = -1;
      for (int round = 0; round < kMaxRounds && (before < 0 || cost_ < before * (1 - kSlack)); ++round) {
        before = cost_;
        improve(&GreedyRules::patience_for_weight, shares);
        improve(&GreedyRules::patience_at_first, fine_shares);
        improve(&GreedyRules::patience_for_forward, shares);
        improve(&GreedyRules::patience_at_last, shares);
        improve(&GreedyRules::later_stage_first, {true, false});
      }
    }
  }
  require(!best_.empty(), "no order of ", shape_.num_stages, " stages fits into a memory of ", memory_limit_,
          " activations per rank; raise the limit");
  for (Found& found : best_) {
    const std::size_t size = num_actions(found.order);
    const std::size_t budget = kMaxPolishedActions / kMaxPolishedOrders / size;
    if (budget >= size) polish(found, budget);
  }
  return std::min_element(best_.begin(), best_.end(),
                          [](const Found& one, const Found& other) { return one.cost < other.cost; })
      ->order;
}

}  // namespace trireme::schedule
