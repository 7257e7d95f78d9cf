#pragma once
// Measured times of the ranks' actions: the counterpart of simulate()'s Timeline, which has the planned
// times. Times are seconds from one origin for all ranks; waiting for a message is no part of an action.
// Values and pure functions; thread-safe.

#include <vector>

#include "trireme/schedule/costs.h"
#include "trireme/schedule/program.h"
#include "trireme/schedule/simulate.h"

namespace trireme::schedule {

struct TimedAction {
  Action action;
  double start_s = 0;
  double end_s = 0;
};

/// [r]: actions of rank r of the pipeline in a step, in order.
using TimedRanks = std::vector<std::vector<TimedAction>>;

/// The program's computations at the times of its simulation, and its other actions that take time, without
/// transfers.
TimedRanks timed(const Program& program, const Timeline& timeline);

/// Mean seconds of each stage's F, I, W and STEP over all steps; hop 0. A B counts as I, its W as nothing.
/// Actions that no rank has cost 0; gathering and reducing, which continue concurrently, cost 0.
Costs mean_costs(const Program& program, const std::vector<TimedRanks>& steps);

/// From the first start of a computation on any rank to the last end on any.
Span extent(const TimedRanks& ranks);

/// Per rank: the share of the extent in which it computed nothing (F, B, I, W and RECOMPUTE are computations;
/// of an overlapped pair, which has one time, both count once). 0 where nothing was done at all.
std::vector<double> bubble_shares(const TimedRanks& ranks);

/// F, B, I, W or RECOMPUTE.
bool is_work(const Action& action);

}  // namespace trireme::schedule
