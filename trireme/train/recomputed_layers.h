#pragma once
// train.recompute_layers and train.activation_budget: which layers of a model keep nothing for their backward
// but their inputs and compute the rest again (model/checkpointed.h), named by the configuration or chosen
// from a profile so that activations stay under so many bytes (plan/recomputation.h). No bit of a result
// depends on it.

#include <string>
#include <vector>

#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/model/model.h"
#include "trireme/train/parallel_plan.h"

namespace trireme::train {

/// Throws InvalidArgument: a budget that cannot be read, or keys that exclude each other.
void check_recomputation(const RunConfig& config);

/// Throws InvalidArgument, which lists the model's layers: a name that is none of theirs; a model without
/// layers().
void check_recomputed_layers(const RunConfig& config, model::Model& model);

/// What layers are measured on, by one rank alone: the model, or one whose layers are alike to its own in how
/// they compare, where its own need other ranks.
struct RecomputationTrial {
  model::Model& model;
  const data::DataSource& data;
};

/// What the stages are made of, `layers`, with those checkpointed that the plan asks for; rank 0 logs which.
/// For a budget rank 0 measures the trial's layers on a micro-batch of its data; collective then. Throws
/// InvalidArgument: a budget that nothing reaches, with the smallest that can be.
std::vector<model::Layer> with_recomputed(const ParallelPlan& plan, comm::Context& context,
                                          model::Model& model, std::vector<model::Layer> layers,
                                          const RecomputationTrial& trial);

}  // namespace trireme::train
