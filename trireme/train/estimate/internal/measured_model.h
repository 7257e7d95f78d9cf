#pragma once
// The layers of a plan's model, measured on micro-batches by the available ranks.

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/model/model.h"
#include "trireme/objective/objective.h"
#include "trireme/train/estimate/model_costs.h"
#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {

struct MeasuredModelOptions {
  std::vector<std::int64_t> samples;              ///< of the micro-batches, by rising samples
  bool times = false;                             ///< next to bytes; with backwards in one part and in two
  std::shared_ptr<model::Model> model = nullptr;  ///< null: the configuration's. A custom one is not changed
  std::shared_ptr<const objective::Objective> objective = nullptr;
};

struct MeasuredModel {
  ParallelPlan plan;            ///< with its cuts
  std::vector<ModelUse> costs;  ///< one for each number of samples that the model accepts
};

/// The world has as many ranks as hold parts of the same layers or sequences, or all of the plan. Collective.
/// Sizes are left out up to the first one that the model accepts. Throws InvalidArgument as a Trainer for the
/// plan would; DataError; c10::Error: the model accepts no size.
MeasuredModel measure_model(const ParallelPlan& plan, comm::Context& context, const data::DataSource& data,
                            const MeasuredModelOptions& options);

}  // namespace trireme::train
