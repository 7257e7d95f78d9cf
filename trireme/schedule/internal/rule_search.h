#pragma once
// Finds rules for greedy_order: one rule at a time is set to the value that makes the simulated cost least,
// round after round until none helps. Some hundred simulations; deterministic. One thread at a time.

#include <vector>

#include "trireme/schedule/internal/greedy.h"
#include "trireme/schedule/simulate.h"

namespace trireme::schedule {

class RuleSearch {
 public:
  /// `shape` has the numbers of stages and micro-batches; its ranks are not used.
  RuleSearch(Program shape, const Costs& costs, double memory_limit)
      : shape_(std::move(shape)), costs_(costs), memory_limit_(memory_limit) {}

  std::vector<int> homes;                   ///< rank of each stage
  std::vector<std::vector<int>> in_flight;  ///< values to try for GreedyRules::max_in_flight

  /// Offers an order of another origin; ignored where it needs more memory than there is.
  void consider(Program order);

  /// Throws InvalidArgument when no order fits into the memory.
  Program run();

 private:
  struct Found {
    double cost;
    Program order;
  };

  void try_rules(const GreedyRules& rules);
  /// Tries all values of one rule with the others as they are.
  template <class Value>
  void improve(Value GreedyRules::*rule, const std::vector<Value>& values);
  /// Swaps neighbours, from the end on. A swap must reduce the cost, or keep it and make results earlier that
  /// other ranks wait for.
  void polish(Found& found, std::size_t budget) const;
  bool fits(const Timeline& timeline) const;

  Program shape_;
  Costs costs_;
  double memory_limit_;
  std::vector<Found> best_;  ///< a few, by rising cost
  GreedyRules rules_;        ///< best of this start
  double cost_ = 0;
  bool found_ = false;
};

}  // namespace trireme::schedule
