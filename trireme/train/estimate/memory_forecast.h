#pragma once
// What the memory of each rank will be used for when most is, of a run that has not begun: the formulas of
// its state (memory_report.h), and what its layers hold of micro-batches, measured one by one, in the order
// of the step program. Of ranks that share layers all measure; others are not needed, so that one process
// tells what many ranks will take.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/memory_ledger.h"
#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/model/model.h"
#include "trireme/objective/objective.h"
#include "trireme/train/estimate/model_costs.h"
#include "trireme/train/plan/parallel_plan.h"
#include "trireme/train/report/memory_report.h"

namespace trireme::train {

/// What a rank of a pipeline will hold when most is there.
struct ForecastOfRank {
  MemoryUse at_peak;
  std::int64_t shared_bytes = 0;  ///< of that, in memory that ranks of a host have in common
  /// Most tensors in the first step. Replicas then hold gradients twice, until their update: in buckets in
  /// the order of the model, and in those in the order of the backward. `at_peak` is that of later steps.
  std::int64_t first_step_bytes = 0;
  std::vector<int> stages;  ///< that it holds
};

/// Of ranks on one host: one copy of the weights, where their backend has common memory and each rank's
/// shards do not live elsewhere.
WeightsMemory weights_memory(const ParallelPlan& plan);

/// Whether its schedule goes backward in two parts.
bool splits_backward(const ParallelPlan& plan);

/// Throws InvalidArgument: activations that live elsewhere, or ranks whose memory servers or other sites
/// decide on.
void check_forecast(const ParallelPlan& plan);

/// For a plan with its cuts, by rank of the pipeline; ranks next to it hold as much. Versions of weights of
/// an asynchronous schedule are counted; what lives elsewhere (offload.optimizer, offload.parameters) is not,
/// and nor is what a compression keeps. Pure. Throws InvalidArgument as check_forecast() does.
std::vector<ForecastOfRank> forecast_memory(const ParallelPlan& plan, const ModelUse& model,
                                            WeightsMemory weights);

/// The plan for the configuration's model, with its cuts, and what its ranks will hold.
struct MemoryForecast {
  ParallelPlan plan;
  ModelUse model;                     ///< as it was measured
  std::vector<ForecastOfRank> ranks;  ///< of a pipeline
  /// The rank that holds most.
  const ForecastOfRank& largest() const;
};

/// Measures the layers of the configuration's model, or of `own`, on a micro-batch of the data: one forward
/// and backward each, with memory for one layer at a time. `context` is a world of as many ranks as hold
/// parts of the same layers or sequences (tensor_ranks() times context_ranks()); collective there. A model of
/// one's own is as before. Throws InvalidArgument as check_forecast() does, and as a Trainer for the plan
/// would; DataError.
MemoryForecast measure_memory(const ParallelPlan& plan, comm::Context& context, const data::DataSource& data,
                              WeightsMemory weights, std::shared_ptr<model::Model> own = nullptr,
                              const std::shared_ptr<const objective::Objective>& own_objective = nullptr);

/// What `measured` says of another plan for the same model and data; none where layers would be others, or
/// other batches go through them, so that they have to be measured for it. Throws InvalidArgument as
/// check_forecast() does, and for a model that cannot be cut so.
std::optional<MemoryForecast> forecast_from(const MemoryForecast& measured, const ParallelPlan& plan,
                                            WeightsMemory weights);

}  // namespace trireme::train
