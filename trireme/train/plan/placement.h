#pragma once
// A plan on its ranks: the groups that they talk in, and the layers of a model that its stages are made of.

#include <optional>
#include <vector>

#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/model/model.h"
#include "trireme/parallel/local/outer_optimizer.h"
#include "trireme/parallel/pipeline/pipeline_options.h"
#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {

/// The plan for that model, from its layers; choices by measurement are still open. Throws InvalidArgument: a
/// model that cannot be cut, or has too few layers. Not collective.
ParallelPlan fit(const ParallelPlan& plan, model::Model& model);

/// Where this rank computes. Throws InvalidArgument: the context was made for another kind of device.
c10::Device device_for(const ParallelPlan& plan, const comm::Context& context);

/// The groups along the axes of a plan's mesh; none where there is one rank along it.
struct PlanGroups {
  comm::Group pipeline;
  /// Ranks that together hold all parts of the model, for reductions over all of its gradients: those of a
  /// pipeline or, where replicas or layers are in parts, all ranks.
  comm::Group model_parallel;
  std::optional<comm::Group> copies = {};    ///< ranks that hold the same weights, but those of experts
  std::optional<comm::Group> replicas = {};  ///< of them, those that read samples of their own
  std::optional<comm::Group> context = {};   ///< of them, those that have pieces of the same sequences
  std::optional<comm::Group> tensor = {};    ///< ranks that hold parts of the same layers
  std::optional<comm::Group> experts = {};   ///< of `replicas`, those over which a layer's experts are split
  std::optional<comm::Group> expert_copies = {};           ///< of `copies`, those that hold the same experts
  std::optional<parallel::ShardGroups> shard_groups = {};  ///< of `copies`
  std::optional<parallel::SiteGroups> sites = {};          ///< of `replicas`, where they use local SGD
  /// Of this rank among those that draw random numbers of their own: ranks with parts of the same layers have
  /// one number.
  int draw_number = 0;

  /// Gradients are summed over those of a site, or over all copies.
  parallel::PipelineGroups of_pipeline() const {
    return {.pipeline = pipeline, .data = sites ? sites->site : copies, .shard_groups = shard_groups};
  }
  /// Ranks that shard their common state.
  const comm::Group& shards() const { return shard_groups ? shard_groups->shards : *copies; }
  /// Whether replicas on `device` have one copy of the weights between them.
  bool has_common_weights(const ParallelPlan& plan, c10::Device device) const {
    return plan.is_sharded() && !plan.offloads_parameters() && shards().has_shared_memory(device);
  }
};

/// Throws InvalidArgument: a plan for other ranks. Collective.
PlanGroups make_groups(const ParallelPlan& plan, comm::Context& context);

/// The layers of a model that can be cut, none of one that cannot; they compute in that precision and use the
/// model, which has to outlive them.
std::vector<model::Layer> layers_in(const Precision& precision, model::Model& model,
                                    c10::DeviceType device = c10::kCPU);

/// Inputs of as many samples as a micro-batch has.
Fields microbatch_of(const ParallelPlan& plan, const data::DataSource& data);

/// The layers of the stages: layers_in(), or one layer, the whole model, where nothing is cut.
std::vector<model::Layer> layers_for(const ParallelPlan& plan, model::Model& model);

/// The plan with its cuts: for Partition::kTime rank 0 measures the layers on a micro-batch of the data.
/// Collective.
ParallelPlan measure(const ParallelPlan& plan, comm::Context& context,
                     const std::vector<model::Layer>& layers, const data::DataSource& data);

}  // namespace trireme::train
