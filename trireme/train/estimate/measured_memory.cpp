// What the layers of a model hold of a micro-batch, measured for the forecast of a run's memory.
#include <algorithm>
#include <set>

#include "trireme/base/error.h"
#include "trireme/comm/mesh.h"
#include "trireme/model/convolution_scope.h"
#include "trireme/parallel/tensor/tensor_form.h"
#include "trireme/parallel/zero/rounded_parameters.h"
#include "trireme/train/estimate/layer_memory.h"
#include "trireme/train/estimate/layer_profile.h"
#include "trireme/train/estimate/memory_forecast.h"
#include "trireme/train/parts/convolutions.h"
#include "trireme/train/plan/internal/chain_link.h"
#include "trireme/train/plan/placement.h"
#include "trireme/train/step/internal/check.h"
#include "trireme/train/step/internal/form_loss.h"

namespace trireme::train {
namespace {

/// The form that ranks of such a plan compute of a model, and the groups that they do it in.
struct FormOfModel {
  parallel::TensorFormOptions options;
  parallel::TensorForm form;
};

FormOfModel form_in(const ParallelPlan& plan, comm::Context& context,
                    const std::shared_ptr<model::Model>& whole) {
  if (!plan.has_form()) return {.options = {.group = context.self()}, .form = {.model = whole}};
  const MeshShape mesh = plan.mesh().only({"cp", "tp"});
  parallel::TensorFormOptions options{.group = comm::make_group(context, mesh, {"tp"}),
                                      .cut_sequences = plan.config().parallel.sequence,
                                      .context = std::nullopt};
  if (plan.context_ranks() > 1) options.context = comm::make_group(context, mesh, {"cp"});
  parallel::TensorForm form = parallel::make_tensor_form(*whole, options);
  return {.options = std::move(options), .form = std::move(form)};
}

data::Example batch_of(const ParallelPlan& plan, const data::DataSource& data, c10::Device device) {
  const data::Example batch =
      data.train->trial_batch(std::min(plan.samples_of_microbatch(), data.train->size()));
  return {.input = batch.input.on(device), .target = batch.target.on(device)};
}

/// As the last layer of a chain. What it is made of has to outlive it.
model::Layer loss_of(const objective::Objective& objective, const FormOfModel& made, const ParallelPlan& plan,
                     const Fields& targets) {
  return {.name = "loss", .forward = [&](const Fields& outputs) -> Fields {
            return plan.has_form() ? loss_of_form(objective, made.form, made.options, {outputs, targets})
                                   : objective.loss_all(outputs, targets);
          }};
}

/// Layers with their parameters, and without what they hold.
std::vector<LayerUse> uses_of(const std::vector<model::Layer>& chain) {
  const std::set<std::string> rounded = parallel::rounded_parameters(chain);
  std::vector<LayerUse> uses;
  for (const model::Layer& layer : chain) {
    uses.push_back({.name = layer.name, .memory = {}});
    for (const auto& [name, parameter] : layer.parameters) {
      uses.back().parameters.push_back({.name = name,
                                        .bytes = static_cast<std::int64_t>(parameter.nbytes()),
                                        .numel = parameter.numel(),
                                        .is_rounded = rounded.contains(name)});
    }
  }
  return uses;
}

}  // namespace

MemoryForecast measure_memory(const ParallelPlan& plan, comm::Context& context, const data::DataSource& data,
                              WeightsMemory weights, std::shared_ptr<model::Model> own,
                              const std::shared_ptr<const objective::Objective>& own_objective) {
  check_forecast(plan);
  require(context.world_size() == plan.tensor_ranks() * plan.context_ranks(),
          "memory is measured by the ranks that hold parts of the same layers, ",
          plan.tensor_ranks() * plan.context_ranks(), "; this world has ", context.world_size());
  const auto whole = own ? checked_model(std::move(own), plan, data, own_objective)
                         : make_checked_model(plan, data, own_objective);
  MemoryForecast forecast{.plan = fit(plan, *whole), .model = {}, .ranks = {}};
  ParallelPlan& fitted = forecast.plan;
  const FormOfModel made = form_in(fitted, context, whole);
  model::Model& model = *made.form.model;
  const ObjectivePtr objective =
      objective_for(fitted.config(), own_objective, {.data = data, .model = &model});
  const model::ConvolutionScope convolutions(
      convolutions_for(fitted.convolutions(), fitted.precision(), context, model,
                       data.train->trial_batch(1).input, fitted.samples_of_microbatch()));
  fitted = measure(fitted, context, layers_for(fitted, *whole), data);
  const c10::Device device = device_for(fitted, context);
  const data::Example batch = batch_of(fitted, data, device);
  std::vector<model::Layer> chain = layers_in(fitted.precision(), model, device.type());
  if (chain.empty()) chain = layers_for(fitted, model);
  ModelUse use{
      .layers = uses_of(chain), .input_bytes = bytes_of(batch.input), .target_bytes = bytes_of(batch.target)};
  // Which layers are recomputed for a budget depends on their times.
  std::vector<plan::Layer> times;
  if (!fitted.config().train.activation_budget.empty()) times = profile_layers(chain, batch.input);
  chain.push_back(loss_of(*objective, made, fitted, batch.target));
  use.layers.push_back({.name = "loss", .memory = {}});
  const BackwardParts parts = splits_backward(fitted) ? BackwardParts::kTwo : BackwardParts::kOne;
  const std::vector<plan::LayerMemory> measured = profile_memory(chain, batch.input, parts);
  for (std::size_t i = 0; i < measured.size(); ++i) use.layers[i].memory = measured[i];
  for (std::size_t i = 0; i < times.size(); ++i) use.layers[i].memory.kept.forward_s = times[i].forward_s;
  forecast.ranks = forecast_memory(fitted, use, weights);
  forecast.model = std::move(use);
  return forecast;
}

}  // namespace trireme::train
