#pragma once
// Costs of actions, in one unit of time of the caller's choice (all results are in the same unit), and their
// memory. Used by the simulator and by the generators that search. A value.

#include <vector>

namespace trireme::schedule {

/// Costs of the actions of one stage.
struct StageCost {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;  ///< B costs backward_input + backward_weight
  double unshard = 0;          ///< until the stage's weights are gathered; occupies no rank
  double reduce = 0;           ///< until its gradients are reduced, where nothing else is; occupies no rank
  double update = 0;
};

struct Costs {
  std::vector<StageCost> stages = {};  ///< one per stage, one that holds for all, or none: all of 1
  double hop = 0;                      ///< latency of a message to another rank; occupies no rank
  double message_bytes = 0;            ///< bytes of one activation or gradient between stages
  double bandwidth = 0;                ///< bytes per unit of time of one direction of a link; 0: no limit
  double overlap = 1;                  ///< time of an overlapped pair / (its forward + its backward)
  double kept_for_weight = 1;          ///< share of an activation that lives on between I and W
  int buckets = 1;                     ///< equal parts in which a stage's gradients are reduced
  /// Share of the time of an exchange (messages, gathered weights, reduced gradients) that the rank itself
  /// loses, 0 to 1: where ranks compute on all cores, exchanges take theirs.
  double share_of_core = 0;

  /// The costs of that stage: one entry holds for all of them, none means 1 for each pass.
  StageCost of(int stage) const {
    if (stages.empty()) return {};
    return stages.size() == 1 ? stages.front() : stages[static_cast<std::size_t>(stage)];
  }
};

}  // namespace trireme::schedule
