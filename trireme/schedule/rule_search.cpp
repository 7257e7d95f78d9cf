#include "trireme/schedule/internal/rule_search.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/schedule/internal/occupancy.h"

namespace trireme::schedule {
namespace {

constexpr double kSlack = 1e-9;
constexpr int kMostRounds = 3;
constexpr std::size_t kMostPolishedActions = 2'000'000;  // simulated in all; about a second

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

}  // namespace

void RuleSearch::consider(Program order) {
  const Timeline timeline = simulate(order, costs_);
  if (!fits(timeline) || (found_best_ && timeline.cost >= best_cost_ * (1 - kSlack))) return;
  best_ = std::move(order);
  best_cost_ = timeline.cost;
  found_best_ = true;
}

bool RuleSearch::fits(const Timeline& timeline) const {
  return *std::max_element(timeline.peak_memory.begin(), timeline.peak_memory.end()) <=
         memory_limit_ + kSlack;
}

void RuleSearch::polish() {
  const std::size_t budget = kMostPolishedActions / num_actions(best_);
  std::size_t tried = 0;
  for (bool better = true; better && tried < budget;) {
    better = false;
    for (std::size_t rank = 0; rank < best_.ranks.size(); ++rank) {
      for (std::size_t i = best_.ranks[rank].size() - 1; i-- > 0 && tried < budget;) {
        std::vector<Action>& actions = best_.ranks[rank];
        if (actions[i].kind != ActionKind::kBackwardWeight || actions[i].kind == actions[i + 1].kind)
          continue;
        std::swap(actions[i], actions[i + 1]);
        ++tried;
        const Timeline timeline = simulate(best_, costs_);
        if (fits(timeline) && timeline.cost < best_cost_ * (1 - kSlack)) {
          best_cost_ = timeline.cost;
          better = true;
        } else {
          std::swap(actions[i], actions[i + 1]);
        }
      }
    }
  }
}

void RuleSearch::try_rules(const GreedyRules& rules) {
  Program order = shape_;
  order.ranks = greedy_order(homes, shape_.num_microbatches, costs_, rules);
  const auto complete = static_cast<std::size_t>(3 * shape_.num_stages * shape_.num_microbatches);
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
      rules_ = {
          .memory_limit = memory_limit_, .most_in_flight = most, .forward_before_weight = forward_first};
      try_rules(rules_);
      double before = -1;
      for (int round = 0; round < kMostRounds && (before < 0 || cost_ < before * (1 - kSlack)); ++round) {
        before = cost_;
        improve(&GreedyRules::patience_for_weight, shares);
        improve(&GreedyRules::patience_at_first, fine_shares);
        improve(&GreedyRules::patience_for_forward, shares);
        improve(&GreedyRules::patience_at_last, shares);
        improve(&GreedyRules::later_stage_first, {true, false});
      }
    }
  }
  require(found_best_, "no order of ", shape_.num_stages, " stages fits into a memory of ", memory_limit_,
          " activations per rank; raise the limit");
  polish();
  return best_;
}

}  // namespace trireme::schedule
