#pragma once
// Where no plan fits into the memory: changes of the configuration, or more ranks, with which one does. A
// search has tried micro-batches down to one sample, and layers that are recomputed; these are what it leaves
// to the user. Pure.

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/train/planner/plan_search.h"

namespace trireme::train {

struct WayToFit {
  std::vector<PlannedSetting> changes = {};  ///< keys and their new values
  std::vector<std::string> left_out = {};    ///< planned keys that the configuration leaves to the planner
  int world_size = 1;
  /// The fastest plan that fits; where none does, the smallest.
  PlannedStep plan = {};
  bool fits = false;
  bool is_time_known = true;  ///< false: without the time of disks
};

/// The ways, the cheapest first: planned keys that are fixed, left to the planner; offloading of the
/// optimizer's state to files; that and offloading of parameters; two, four or eight times the ranks, up to
/// those on which a plan fits. Ways that cannot run, or that do not make the smallest plan smaller, are left
/// out. `search`: of the same arguments, without a plan that fits. Cost: that of a few searches, of bounded
/// work.
std::vector<WayToFit> ways_to_fit(const RunConfig& config, int world_size, const MeasuredForms& measured,
                                  const PlanSearchOptions& options, const PlanSearch& search);

/// Of a rank's process without tensors, which no plan changes; 0: it is not known.
std::int64_t bytes_without_tensors(const MeasuredForms& measured);

/// "-n 4", "without parallel.zero".
std::string in_words(const WayToFit& way, int world_size);

}  // namespace trireme::train
