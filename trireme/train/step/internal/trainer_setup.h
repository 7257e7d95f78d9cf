#pragma once
// The phases in which a trainer is made: each goes from values to values, and none sees a half-built trainer.

#include <functional>
#include <memory>

#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/train/plan/parallel_plan.h"
#include "trireme/train/plan/placement.h"
#include "trireme/train/step/internal/step_part.h"
#include "trireme/train/step/step_reports.h"
#include "trireme/train/step/trained_model.h"

namespace trireme::train {

/// Inputs of a trainer.
struct TrainerRequest {
  const ParallelPlan& plan;
  comm::Context& context;
  const data::DataSource& data;
  std::shared_ptr<model::Model> own_model;  ///< null: the configuration's
  std::shared_ptr<const objective::Objective> own_objective;
};

/// Everything before its pipeline is there.
struct TrainerSetup {
  comm::Context& context;
  const data::DataSource& data;
  ParallelPlan plan;  ///< for this model, with its cuts
  PlanGroups groups;
  TrainedModel model;
  std::shared_ptr<model::Model> whole;      ///< used until the pipeline is there
  std::shared_ptr<optim::Offload> offload;  ///< of parameters and optimizer state; null: in memory
  StepParts parts;
  parallel::PipelineGroups pipeline_groups;
  parallel::PipelineOptions options;  ///< of the pipeline, which has model.layers
  /// Called by the pipeline at an update; to be set when the trainer is there.
  std::shared_ptr<std::function<void()>> update = std::make_shared<std::function<void()>>();
};

/// Throws the rejections of check.h. Collective.
TrainerSetup set_up_trainer(const TrainerRequest& request);

/// The optimizer of the pipeline's parameters, as the parts want it. Collective.
std::unique_ptr<optim::Optimizer> set_up_optimizer(const TrainerSetup& setup, parallel::Pipeline& pipeline,
                                                   const UpdatedParameters& parameters);

/// Exchanges of as many reports as the parts ask for. Collective.
StepReports set_up_reports(const StepParts& parts, comm::Context& context, c10::Device device);

}  // namespace trireme::train
