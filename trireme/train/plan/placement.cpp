#include "trireme/train/plan/placement.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/mesh_axes.h"
#include "trireme/comm/device.h"
#include "trireme/comm/mesh.h"
#include "trireme/model/experts.h"
#include "trireme/plan/chain_cuts.h"
#include "trireme/train/estimate/layer_profile.h"
#include "trireme/train/parts/internal/exact_run.h"
#include "trireme/train/parts/recomputed_layers.h"

namespace trireme::train {
namespace {

model::Layer in_precision(model::Layer layer, const Precision& precision, c10::DeviceType device) {
  layer.forward = [inner = std::move(layer.forward), precision, device](const Fields& inputs) {
    const PrecisionScope scope(precision, device);
    return inner(inputs);
  };
  return layer;
}

double num_parameters(const model::Layer& layer) {
  std::int64_t count = 0;
  for (const auto& [name, parameter] : layer.parameters) count += parameter.numel();
  return static_cast<double>(count);
}

}  // namespace

Fields microbatch_of(const ParallelPlan& plan, const data::DataSource& data) {
  return data.train->trial_batch(std::min(plan.samples_of_microbatch(), data.train->size())).input;
}

ParallelPlan fit(const ParallelPlan& plan, model::Model& model) {
  check_recomputed_layers(plan.config(), model);
  check_exact(plan, model);
  if (!plan.is_cut() && !plan.stages_are_layers() && !plan.is_model_parallel() && plan.expert_ranks() == 1)
    return plan;
  ModelShape shape{.name = model.name(),
                   .parameters = {},
                   .tensor = parallel::tensor_limits(model),
                   .experts = model::num_experts(model)};
  for (const model::Layer& layer : model.layers()) shape.parameters.push_back(num_parameters(layer));
  return plan.for_model(shape);
}

c10::Device device_for(const ParallelPlan& plan, const comm::Context& context) {
  if (plan.device() == c10::kCPU) return c10::kCPU;
  require(plan.device() == context.device().type(), "the plan computes on ", comm::name_of(plan.device()),
          ", and this rank was made for ", context.device().str(),
          "; give comm::ContextOptions::device the value of train.device");
  return context.device();
}

namespace {

/// Axes along which ranks hold the same weights, except those of experts.
MeshShape::Fold axes_of_copies() { return axes_that_share_none({Shared::kStages, Shared::kLayers}); }

/// Leaves out the axes that the mesh lacks, as groups are named after their axes.
PlanGroups groups_along_axes(const MeshShape& mesh, comm::Context& context) {
  const auto along = [&](const MeshShape::Fold& fold) -> std::optional<comm::Group> {
    if (mesh.size(fold) == 1) return std::nullopt;
    return comm::make_group(context, mesh, mesh.only(fold).names());
  };
  const comm::Group pipeline = comm::make_group(context, mesh, axes_that_share({Shared::kStages}));
  PlanGroups groups{.pipeline = pipeline, .model_parallel = pipeline};
  groups.replicas = along(axes_that_share({Shared::kSamples}));
  groups.context = along(axes_that_share({Shared::kSequences}));
  groups.tensor = along(axes_that_share({Shared::kLayers}));
  // Not the group of cp: gradients are reduced while attention still uses that one.
  groups.copies = groups.context ? along(axes_of_copies()) : groups.replicas;
  groups.experts = along(axes_that_share({Shared::kExperts}));
  groups.expert_copies =
      groups.experts ? along(axes_that_share_none({Shared::kStages, Shared::kLayers, Shared::kExperts}))
                     : groups.copies;
  return groups;
}

/// The copies of the weights, in groups of adjacent ranks.
parallel::ShardGroups shard_groups_of(const ParallelPlan& plan, comm::Context& context) {
  const MeshShape copies = plan.mesh().merge(axes_of_copies(), "dp");
  const MeshShape mesh = copies.split("dp", "dp-copies", "dp-shards", plan.shard_ranks());
  return {.shards = comm::make_new_group(context, mesh, {"dp-shards"}),
          .copies = comm::make_new_group(context, mesh, {"dp-copies"})};
}

/// Adjacent ranks form a site.
parallel::SiteGroups site_groups_of(const ParallelPlan& plan, comm::Context& context) {
  const MeshShape mesh = plan.mesh().split("dp", "sites", "dp-site", plan.site_ranks());
  parallel::SiteGroups groups{.sites = comm::make_new_group(context, mesh, {"sites"}), .site = {}};
  if (plan.site_ranks() > 1) groups.site = comm::make_new_group(context, mesh, {"dp-site"});
  return groups;
}

}  // namespace

PlanGroups make_groups(const ParallelPlan& plan, comm::Context& context) {
  require(plan.world_size() == context.world_size(), "the plan is for ", plan.world_size(),
          plan.world_size() == 1 ? " rank" : " ranks", ", and this world has ", context.world_size(),
          "; make one with resolve_plan(config, context.world_size())");
  const MeshShape mesh = plan.mesh();
  PlanGroups groups = groups_along_axes(mesh, context);
  groups.draw_number = mesh.place(context.rank(), axes_that_share_none({Shared::kLayers}));
  if (plan.has_sharded_parameters()) groups.model_parallel = context.world();
  if (plan.has_shard_groups()) groups.shard_groups = shard_groups_of(plan, context);
  if (plan.uses_local_sgd()) groups.sites = site_groups_of(plan, context);
  return groups;
}

std::vector<model::Layer> layers_in(const Precision& precision, model::Model& model, c10::DeviceType device) {
  std::vector<model::Layer> layers = model.layers();
  for (model::Layer& layer : layers) layer = in_precision(std::move(layer), precision, device);
  return layers;
}

std::vector<model::Layer> layers_for(const ParallelPlan& plan, model::Model& model) {
  if (plan.is_cut()) return layers_in(plan.precision(), model, plan.device());
  return {in_precision(model::whole(model), plan.precision(), plan.device())};
}

ParallelPlan measure(const ParallelPlan& plan, comm::Context& context,
                     const std::vector<model::Layer>& layers, const data::DataSource& data) {
  if (!plan.measures_cuts()) return plan;
  const int stages = plan.program().num_stages;
  at::Tensor cuts = at::zeros({stages - 1}, at::kLong);
  if (context.is_main()) {
    const telemetry::OwnWork work(context.status(), "measuring the layers of the model");
    const std::vector<plan::Layer> profile =
        profile_layers(layers, microbatch_of(plan, data).on(device_for(plan, context)));
    const auto found = plan::cut_chain(
        profile, {.num_stages = static_cast<std::size_t>(stages), .replicas = plan.replicas_of_stages()});
    std::copy(found.begin(), found.end(), cuts.data_ptr<std::int64_t>());
  }
  context.world().broadcast(cuts, 0);
  const auto* first = cuts.const_data_ptr<std::int64_t>();
  return plan.with_cuts({first, first + cuts.numel()});
}

}  // namespace trireme::train
