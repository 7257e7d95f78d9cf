#pragma once
// Forecast of the peak memory of each rank for a run that has not begun. It uses the formulas of the state
// (memory_report.h) and the memory of layers, measured one by one, in the order of the step program. All
// ranks that share layers measure. Other ranks are not needed, so one process can forecast the memory of many
// ranks.

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

/// Peak memory of a rank of a pipeline.
struct ForecastOfRank {
  MemoryUse at_peak;
  std::int64_t shared_bytes = 0;  ///< of that, in memory that ranks of a host have in common
  /// Most tensors in the first step. Replicas then hold gradients twice, until their update: in buckets in
  /// the order of the model, and in those in the order of the backward. `at_peak` is that of later steps.
  std::int64_t first_step_bytes = 0;
  std::vector<int> stages;  ///< that it holds
};

/// Of ranks on one host: one copy of the weights, where their backend has common memory and each rank's
/// shards are not offloaded.
WeightsMemory weights_memory(const ParallelPlan& plan);

/// Whether its schedule goes backward in two parts.
bool splits_backward(const ParallelPlan& plan);

/// Throws InvalidArgument: offloaded activations, or ranks whose memory servers or other sites decide on.
void check_forecast(const ParallelPlan& plan);

/// For a plan with its cuts, by rank of the pipeline; its replicas need as much. Versions of weights of an
/// asynchronous schedule are counted. State outside the rank's memory (offload.optimizer, offload.parameters)
/// and state of a compression are not counted. Pure. Throws InvalidArgument as check_forecast() does.
std::vector<ForecastOfRank> forecast_memory(const ParallelPlan& plan, const ModelUse& model,
                                            WeightsMemory weights);

/// The plan for the configuration's model, with its cuts, and the memory of its ranks.
struct MemoryForecast {
  ParallelPlan plan;
  ModelUse model;                     ///< as it was measured
  std::vector<ForecastOfRank> ranks;  ///< of a pipeline
  /// The rank that holds most.
  const ForecastOfRank& largest() const;
};

/// Measures the layers of the configuration's model, or of `own`, on a micro-batch of the data: one forward
/// and backward each, with memory for one layer at a time. `context` is a world of as many ranks as hold
/// parts of the same layers or sequences (tensor_ranks() times context_ranks()); collective there. The state
/// of a custom model is unchanged afterwards. Throws InvalidArgument as check_forecast() does, and as a
/// Trainer for the plan would; DataError.
MemoryForecast measure_memory(const ParallelPlan& plan, comm::Context& context, const data::DataSource& data,
                              WeightsMemory weights, std::shared_ptr<model::Model> own = nullptr,
                              const std::shared_ptr<const objective::Objective>& own_objective = nullptr);

/// Forecast for another plan for the same model and data, from `measured`. None where layers or batches
/// differ, so that they have to be measured. Throws InvalidArgument as check_forecast() does, and for a model
/// that cannot be cut so.
std::optional<MemoryForecast> forecast_from(const MemoryForecast& measured, const ParallelPlan& plan,
                                            WeightsMemory weights);

}  // namespace trireme::train
