// Layers of a model measured on micro-batches: memory and time.
#include "trireme/train/estimate/internal/measured_model.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/mesh_axes.h"
#include "trireme/comm/mesh.h"
#include "trireme/model/convolution_scope.h"
#include "trireme/parallel/tensor/tensor_parallel_model.h"
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

/// The model in the form of the plan (tensor and context parallel), and the groups of that form.
struct FormOfModel {
  parallel::TensorParallelOptions options;
  parallel::TensorParallelModel form;
};

FormOfModel form_in(const ParallelPlan& plan, comm::Context& context,
                    const std::shared_ptr<model::Model>& whole) {
  if (!plan.is_model_parallel()) return {.options = {.group = context.self()}, .form = {.model = whole}};
  const bool is_whole_world = context.world_size() == plan.world_size();
  const MeshShape mesh =
      is_whole_world ? plan.mesh() : plan.mesh().only(axes_that_share({Shared::kSequences, Shared::kLayers}));
  parallel::TensorParallelOptions options{
      .group = comm::make_group(context, mesh, axes_that_share({Shared::kLayers})),
      .cut_sequences = plan.config().parallel.sequence,
      .context = std::nullopt};
  if (plan.context_ranks() > 1)
    options.context = comm::make_group(context, mesh, axes_that_share({Shared::kSequences}));
  parallel::TensorParallelModel form = parallel::make_tensor_parallel(*whole, options);
  return {.options = std::move(options), .form = std::move(form)};
}

data::Example batch_of(std::int64_t samples, const data::DataSource& data, c10::Device device) {
  const data::Example batch = data.train->trial_batch(std::min(samples, data.train->size()));
  return {.input = batch.input.on(device), .target = batch.target.on(device)};
}

/// The loss as the last layer of a chain. Its arguments must outlive it.
model::Layer loss_of(const objective::Objective& objective, const FormOfModel& made, const ParallelPlan& plan,
                     const Fields& targets) {
  return {.name = "loss", .forward = [&](const Fields& outputs) -> Fields {
            return plan.is_model_parallel()
                       ? loss_of_form(objective, made.form, made.options, {outputs, targets})
                       : objective.loss_all(outputs, targets);
          }};
}

/// Layers with their parameters, without memory and times.
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

MeasuredModel measure_model(const ParallelPlan& plan, comm::Context& context, const data::DataSource& data,
                            const MeasuredModelOptions& options) {
  const int parts = plan.tensor_ranks() * plan.context_ranks();
  require(context.world_size() == parts || context.world_size() == plan.world_size(),
          "layers are measured by the ranks that hold parts of the same layers, ", parts,
          ", or by all ranks of the plan, ", plan.world_size(), "; this world has ", context.world_size());
  const auto whole = options.model ? checked_model(options.model, plan, data, options.objective)
                                   : make_checked_model(plan, data, options.objective);
  MeasuredModel measured{.plan = fit(plan, *whole), .costs = {}};
  ParallelPlan& fitted = measured.plan;
  const FormOfModel made = form_in(fitted, context, whole);
  model::Model& model = *made.form.model;
  const ObjectivePtr objective =
      objective_for(fitted.config(), options.objective, {.data = data, .model = &model});
  const model::ConvolutionScope convolutions(
      convolutions_for(fitted.convolutions(), fitted.precision(), context, model,
                       data.train->trial_batch(1).input, fitted.samples_of_microbatch()));
  fitted = measure(fitted, context, layers_for(fitted, *whole), data);
  const c10::Device device = device_for(fitted, context);
  const BackwardParts parts_of_backward =
      options.times || splits_backward(fitted) ? BackwardParts::kTwo : BackwardParts::kOne;
  const auto measure_at = [&](std::int64_t samples) {
    const data::Example batch = batch_of(samples, data, device);
    std::vector<model::Layer> chain = layers_in(fitted.precision(), model, device.type());
    if (chain.empty()) chain = layers_for(fitted, model);
    ModelUse use{.layers = uses_of(chain),
                 .input_bytes = bytes_of(batch.input),
                 .target_bytes = bytes_of(batch.target),
                 .samples = samples};
    // The choice of recomputed layers for a budget depends on the layers' times.
    const bool has_budget = !fitted.config().train.activation_budget.empty();
    std::vector<plan::Layer> alone;
    if (has_budget) alone = profile_layers(chain, batch.input);
    chain.push_back(loss_of(*objective, made, fitted, batch.target));
    use.layers.push_back({.name = "loss", .memory = {}});
    const std::vector<plan::LayerMemory> memory = profile_memory(chain, batch.input, parts_of_backward);
    for (std::size_t i = 0; i < memory.size(); ++i) use.layers[i].memory = memory[i];
    for (std::size_t i = 0; i < alone.size(); ++i) use.layers[i].memory.kept.forward_s = alone[i].forward_s;
    if (options.times) {
      const std::vector<LayerTime> times = time_layers(chain, batch.input, parts_of_backward);
      for (std::size_t i = 0; i < times.size(); ++i) {
        use.layers[i].time = times[i];
        if (!has_budget) use.layers[i].memory.kept.forward_s = times[i].forward_s;
      }
    }
    return use;
  };
  for (const std::int64_t samples : options.samples) {
    try {
      measured.costs.push_back(measure_at(samples));
    } catch (const c10::Error&) {  // on all ranks: a batch norm rejects one value per channel
      if (!measured.costs.empty() || samples == options.samples.back()) throw;
    }
  }
  return measured;
}

MemoryForecast measure_memory(const ParallelPlan& plan, comm::Context& context, const data::DataSource& data,
                              WeightsMemory weights, std::shared_ptr<model::Model> own,
                              const std::shared_ptr<const objective::Objective>& own_objective) {
  check_forecast(plan);
  MeasuredModel measured = measure_model(
      plan, context, data,
      {.samples = {plan.samples_of_microbatch()}, .model = std::move(own), .objective = own_objective});
  MemoryForecast forecast{
      .plan = std::move(measured.plan), .model = std::move(measured.costs.front()), .ranks = {}};
  forecast.ranks = forecast_memory(forecast.plan, forecast.model, weights);
  return forecast;
}

}  // namespace trireme::train
