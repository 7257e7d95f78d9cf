#pragma once
// The time and the memory of a step by a plan, from measurements (measurements.h) of any other plan for the
// same model: the plan's step program, simulated with the costs of its stages.

#include <vector>

#include "trireme/schedule/costs.h"
#include "trireme/schedule/simulate.h"
#include "trireme/train/estimate/measurements.h"
#include "trireme/train/estimate/memory_forecast.h"
#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {

/// Where the time of a rank goes in a step. The sum is the step.
struct SecondsOfRank {
  double forward = 0, backward = 0;  ///< backward: includes recomputed forwards
  double update = 0;
  double exchange = 0;  ///< of weights and gradients, as far as computations wait for it or lose by it
  double overhead = 0;  ///< batches, reports, the program itself
  double idle = 0;      ///< no work: the bubble of a pipeline, messages on their way, slower ranks
  /// Of all parts.
  double total() const { return forward + backward + update + exchange + overhead + idle; }
};

/// A rank of a pipeline; its replicas are alike.
struct EstimateOfRank {
  SecondsOfRank seconds;
  ForecastOfRank memory;
};

struct Estimate {
  ParallelPlan plan;            ///< with its cuts
  double step_s = 0;            ///< of an asynchronous schedule: between two updates
  schedule::Costs costs;        ///< in seconds
  schedule::Timeline timeline;  ///< of the program with these costs
  std::vector<EstimateOfRank> ranks;
};

/// The plan with its cuts, where the model is cut: by the measured times where the plan has none. Throws
/// InvalidArgument: a model that cannot be cut so.
ParallelPlan cut_by_time(const ParallelPlan& plan, const ModelUse& model);

/// weights_memory() of ranks on the hosts of the measurements: one copy if the ranks that shard it are on one
/// host.
WeightsMemory weights_memory(const ParallelPlan& plan, const Measurements& measured);

/// Throws InvalidArgument: measurements of another model (model_key()), or of one rank for several; a plan
/// that cannot be cut so, one whose memory or time depends on servers, sites or disks (check_forecast()), one
/// with smaller micro-batches than the model accepts, or with a codec that was not measured.
/// Pure. Cost: a walk over the program.
Estimate estimate(const ParallelPlan& plan, const Measurements& measured, WeightsMemory weights);

}  // namespace trireme::train
