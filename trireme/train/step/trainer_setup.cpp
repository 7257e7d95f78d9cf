#include "trireme/train/step/internal/trainer_setup.h"

#include <numeric>

#include "trireme/base/error.h"
#include "trireme/checkpoint/tensor_match.h"
#include "trireme/checkpoint/weights_file.h"
#include "trireme/model/deferred.h"
#include "trireme/model/initialise.h"
#include "trireme/parallel/counted_memory.h"
#include "trireme/parallel/data/broadcast.h"
#include "trireme/train/parts/internal/offloading.h"
#include "trireme/train/parts/internal/serving.h"
#include "trireme/train/step/internal/check.h"
#include "trireme/train/step/internal/initial_weights.h"
#include "trireme/train/step/internal/parts_of_tensors.h"
#include "trireme/train/step/model_state.h"

namespace trireme::train {
namespace {

/// Loads the weights of the configuration's file into the model on rank 0.
void take_weights(const RunConfig& config, comm::Context& context, model::Model& model) {
  const std::string& path = config.model.weights;
  if (path.empty() || !context.is_main()) return;
  const telemetry::OwnWork work(context.status(), "loading " + path);
  const at::NoGradGuard no_grad;
  const checkpoint::TensorMap ours = state_of(model);
  checkpoint::TensorMap found = checkpoint::load_weights_file(path).tensors;
  for (const std::string& name : checkpoint::drop_tied_copies(found, ours))
    context.log().info(path, ": '", name, "' is a second name of a tensor that the model takes");
  checkpoint::check_same_tensors(found, ours, path);
  for (const auto& [name, tensor] : ours) at::Tensor(tensor).copy_(found.at(name));
}

/// Rejects a model that the plan does not allow.
std::shared_ptr<model::Model> checked(const TrainerRequest& request) {
  parallel::count_allocations();  // before a run allocates anything
  check_data_of(request.plan, request.data, request.own_objective);
  return request.own_model
             ? checked_model(request.own_model, request.plan, request.data, request.own_objective)
             : make_checked_model(request.plan, request.data, request.own_objective);
}

/// Those layers with only their parameters without memory.
std::vector<model::Layer> without_memory(std::vector<model::Layer> layers) {
  const auto has_memory = [](const auto& named) { return !named.second.is_meta(); };
  for (model::Layer& layer : layers) std::erase_if(layer.parameters, has_memory);
  return layers;
}

/// Allocates memory on that device, with values from the seed, for layers without memory.
void materialise(const std::vector<model::Layer>& layers, model::Model& model, std::int64_t seed,
                 c10::Device device) {
  const model::FirstValuesOf those(without_memory(layers));
  for (const model::Layer& layer : layers) model::materialise(layer, device);
  model.initialise(static_cast<std::uint64_t>(seed));
}

/// Gives the model its initial values, those of rank 0. A deferred model gets them later, from the seed or
/// from the result, on the rank that materializes them.
std::shared_ptr<const InitialWeights> prepare(const ParallelPlan& plan, comm::Context& context,
                                              model::Model& model) {
  if (model::is_deferred(model)) {
    const std::string& path = plan.config().model.weights;
    if (path.empty()) return nullptr;
    if (auto weights = InitialWeights::open(path, context, model)) return weights;
    materialise({model::whole(model)}, model, plan.config().run.seed, c10::kCPU);
  }
  take_weights(plan.config(), context, model);
  // Within a stage, replicas get the values of the first one. Stages and sites must come from one rank as
  // well.
  if (plan.is_cut() || plan.is_model_parallel() || plan.uses_local_sgd())
    parallel::broadcast_module(context.world(), model);
  return nullptr;
}

/// The whole model in the form that this rank computes, and its objective.
TrainedModel trained_model(const TrainerRequest& request, const PlanGroups& groups,
                           const std::shared_ptr<model::Model>& whole) {
  const ParallelPlan& plan = request.plan;
  TrainedModel model{.form_options = {.group = groups.tensor.value_or(request.context.self()),
                                      .cut_sequences = plan.config().parallel.sequence,
                                      .context = groups.context},
                     .form = {.model = whole},
                     .objective = nullptr,
                     .layers = {}};
  if (plan.is_model_parallel()) model.form = parallel::make_tensor_parallel(*whole, model.form_options);
  model.objective = objective_for(plan.config(), request.own_objective,
                                  {.data = request.data, .model = model.form.model.get()});
  model.count_of_sample = model.objective->count_all(request.data.train->trial_batch(1));
  return model;
}

/// Called with the layers of each of this rank's stages before their first use.
auto materialiser(const TrainerSetup& setup, std::shared_ptr<const InitialWeights> first_weights) {
  return [model = setup.model.form.model, device = setup.model.device, seed = setup.plan.config().run.seed,
          deferred = model::is_deferred(setup.model.module()),
          first_weights = std::move(first_weights)](const std::vector<model::Layer>& layers) {
    if (deferred) materialise(layers, *model, seed, device);
    if (first_weights) first_weights->fill(layers, *model);
    for (const model::Layer& layer : layers) model::move_to(layer, device);
  };
}

/// The layers of the stages and their order. Cuts that the plan leaves open are measured.
void set_up_pipeline(TrainerSetup& setup, std::shared_ptr<const InitialWeights> first_weights) {
  std::vector<std::shared_ptr<void>> scopes;
  for (const auto& part : setup.parts) scopes.push_back(part->compute_scope());
  std::vector<model::Layer> layers = layers_for(setup.plan, setup.model.module());
  // One rank measures alone: the layers of the whole model compare with each other as their parts do.
  setup.plan =
      measure(setup.plan, setup.context,
              setup.plan.is_model_parallel() ? layers_for(setup.plan, *setup.whole) : layers, setup.data);
  PipelineSetup pipeline{.plan = setup.plan,
                         .groups = setup.groups.of_pipeline(),
                         .layers = std::move(layers),
                         .options = setup.plan.pipeline_options()};
  pipeline.options.device = setup.model.device;
  if (setup.plan.offloads_parameters()) pipeline.options.offload = setup.offload;
  pipeline.options.materialise = materialiser(setup, std::move(first_weights));
  pipeline.options.update = [update = setup.update] { (*update)(); };
  for (const auto& part : setup.parts) part->configure(pipeline);
  setup.pipeline_groups = std::move(pipeline.groups);
  setup.model.layers = std::move(pipeline.layers);
  setup.options = std::move(pipeline.options);
}

}  // namespace

TrainerSetup set_up_trainer(const TrainerRequest& request) {
  PlanGroups groups = make_groups(request.plan, request.context);
  const std::shared_ptr<model::Model> whole = checked(request);
  std::shared_ptr<const InitialWeights> first_weights = prepare(request.plan, request.context, *whole);
  TrainedModel model = trained_model(request, groups, whole);
  ParallelPlan plan = fit(request.plan, *whole);
  require(plan.expert_ranks() == 1, "parallel.expert = ", plan.expert_ranks(),
          ": the trainer has no layer that replicas compute experts of, and adds up gradients of experts "
          "over all "
          "replicas; take parallel.expert = 1, or a loop of your own in the groups of train::make_groups()");
  model.device = device_for(plan, request.context);
  std::shared_ptr<optim::Offload> offload = offload_for(plan, request.context, model.device);
  StepParts parts = make_step_parts({.plan = plan,
                                     .context = request.context,
                                     .groups = groups,
                                     .data = request.data,
                                     .model = model.module(),
                                     .whole = *whole,
                                     .objective = model.objective,
                                     .device = model.device});
  TrainerSetup setup{.context = request.context,
                     .data = request.data,
                     .plan = std::move(plan),
                     .groups = std::move(groups),
                     .model = std::move(model),
                     .whole = whole,
                     .offload = std::move(offload),
                     .parts = std::move(parts),
                     .pipeline_groups = {.pipeline = request.context.self()},
                     .options = {}};
  set_up_pipeline(setup, std::move(first_weights));
  return setup;
}

std::unique_ptr<optim::Optimizer> set_up_optimizer(const TrainerSetup& setup, parallel::Pipeline& pipeline,
                                                   const UpdatedParameters& parameters) {
  const std::string& name = setup.plan.config().optimizer.name;
  std::unique_ptr<optim::Optimizer> optimizer =
      optimizer_for(setup.plan, setup.context, parameters.all, setup.offload,
                    parts_of_tensors(setup.groups.tensor, parameters.held, name));
  for (const auto& part : setup.parts)
    optimizer = part->wrap_optimizer(std::move(optimizer), pipeline, parameters.all);
  return optimizer;
}

StepReports set_up_reports(const StepParts& parts, comm::Context& context, c10::Device device) {
  const Numbers numbers = device.is_cpu() ? Numbers::kAtOnce : Numbers::kStepLate;
  std::optional<ReportExchange> exchange;
  for (const auto& part : parts) {
    if (!exchange) exchange = part->report_exchange();
  }
  if (!exchange) return StepReports(context.world(), 1, Bundling::kNone, numbers);
  std::vector<int> everybody(static_cast<std::size_t>(context.world_size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  return StepReports(*context.new_group(everybody, context.free_group_name("reports")), exchange->depth,
                     exchange->bundling, numbers);
}

}  // namespace trireme::train
