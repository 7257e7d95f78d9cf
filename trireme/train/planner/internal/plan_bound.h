#pragma once
// Lower bounds of a plan, without its program: seconds of a step and bytes of a rank, by formulas over the
// sums of layers. No plan whose bounds exceed the best time or the memory needs an estimate. Three bounds: of
// the mean rank, of each rank with its stages, and of layers that have to be recomputed. Not thread-safe.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "trireme/train/estimate/internal/exchange_times.h"
#include "trireme/train/estimate/measurements.h"
#include "trireme/train/plan/made_schedules.h"
#include "trireme/train/planner/internal/plan_space.h"

namespace trireme::train {

struct PlanBound {
  double step_s = 0;
  bool recomputes = false;  ///< some layers have to be recomputed for the limit
  double memory_bytes =
      0;  ///< tensors of the rank that has most, with all layers recomputed where that is free
};

/// Number of micro-batches between forward and backward that ranks hold at once, by the order of a schedule
/// alone.
struct ScheduleFacts {
  bool splits_backward = true;
  std::vector<std::vector<int>> stages;  ///< by rank
  std::vector<int> in_flight;            ///< by rank: most stages of micro-batches at once
};

class PlanBounds {
 public:
  /// All have to outlive it. `limit_bytes`: of a rank, 0: no limit.
  PlanBounds(const RunConfig& config, int world_size, std::int64_t limit_bytes, MadeSchedules& schedules);

  /// Of the mean rank of a pipeline: cheap, and below tight().
  PlanBound loose(const PlanChoice& choice, const Measurements& costs);
  /// Of each rank with the stages that the plan would have.
  PlanBound tight(const PlanChoice& choice, const Measurements& costs);
  /// The work of tight() (plan_work.h).
  std::int64_t work_of_tight(const PlanChoice& choice, const Measurements& costs) const;

 private:
  struct Sums;  ///< of layers, from the first on
  Sums& sums_of(const Measurements& costs, std::int64_t samples);
  const std::vector<int>& cuts_of(Sums& sums, std::size_t num_stages);
  using FactsKey = std::tuple<std::string, std::int64_t, std::int64_t, std::int64_t>;
  static FactsKey facts_key(const PlanChoice& choice);
  static ScheduleSize size_of_facts(const PlanChoice& choice);
  const ScheduleFacts* facts_of(const PlanChoice& choice);
  PlanBound loose_of_program(const PlanChoice& choice, const Measurements& costs);
  PlanBound tight_of_program(const PlanChoice& choice, const Measurements& costs);
  static double overhead_s(const PlanChoice& choice, const Measurements& costs, std::size_t stages);
  WeightSharing sharing_of(const PlanChoice& choice) const;
  double exchanges_s(const PlanChoice& choice, const Measurements& costs);
  bool bounds_memory(const Measurements& costs) const;
  double state_bytes(const WeightSharing& sharing, double parameter_bytes, bool counts_gradients) const;
  double gathered_bytes(const PlanChoice& choice, double stage_bytes, std::size_t num_stages) const;
  double end_s(const PlanChoice& choice, const Measurements& costs, double parameter_bytes) const;

  const RunConfig& config_;
  const int world_size_;
  const double limit_bytes_;
  std::map<std::pair<const Measurements*, std::int64_t>, std::shared_ptr<Sums>> sums_;
  MadeSchedules& schedules_;
  std::map<FactsKey, std::shared_ptr<ScheduleFacts>> facts_;
};

}  // namespace trireme::train
