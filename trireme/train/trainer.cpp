#include "trireme/train/trainer.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/checkpoint/tensor_match.h"
#include "trireme/checkpoint/weights_file.h"
#include "trireme/parallel/data/broadcast.h"
#include "trireme/train/internal/check.h"
#include "trireme/train/model_state.h"
#include "trireme/train/pipeline_plan.h"
#include "trireme/train/precision.h"

namespace trireme::train {
namespace {

std::vector<std::string> parameter_names(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : module.named_parameters()) names.push_back(item.key());
  return names;
}

data::LoaderOptions loader_options(const RunConfig& config, const comm::Context& context,
                                   const data::DataSource& data, const parallel::PipelineGroups& groups) {
  return {.global_batch = config.train.global_batch,
          .num_microbatches = num_microbatches(config),
          .rank = groups.data ? groups.data->rank() : 0,
          .world_size = groups.data ? groups.data->size() : 1,
          .workers = config.data.workers,
          .seed = static_cast<std::uint64_t>(config.run.seed),
          .num_classes = data.num_classes,
          .trace = context.trace()};
}

/// On rank 0 the model gets the weights of the configuration's file.
void take_weights(const RunConfig& config, const comm::Context& context, model::Model& model) {
  const std::string& path = config.model.weights;
  if (path.empty() || !context.is_main()) return;
  const at::NoGradGuard no_grad;
  const checkpoint::TensorMap ours = state_of(model);
  checkpoint::TensorMap found = checkpoint::load_weights_file(path).tensors;
  for (const std::string& name : checkpoint::drop_tied_copies(found, ours))
    context.log().info(path, ": '", name, "' is a second name of a tensor that the model takes");
  checkpoint::check_same_tensors(found, ours, path);
  for (const auto& [name, tensor] : ours) at::Tensor(tensor).copy_(found.at(name));
}

/// The model with the values that all ranks begin with: those of rank 0.
std::shared_ptr<model::Model> prepared(const RunConfig& config, comm::Context& context,
                                       std::shared_ptr<model::Model> model) {
  take_weights(config, context, *model);
  // Replicas of a stage get the values of the first one; stages have to come from one rank, too.
  if (config.parallel.pipeline > 1) parallel::broadcast_module(context.world(), *model);
  model->train();
  return model;
}

/// Summed over the targets. One row of logits per target: per sample, or per token of a text.
at::Tensor cross_entropy(const at::Tensor& output, const at::Tensor& target) {
  const at::Tensor logits = output.to(at::kFloat).flatten(0, -2);
  return at::cross_entropy_loss(logits, target.flatten(), {}, at::Reduction::Sum);
}

optim::NamedTensors gradients_of(const optim::NamedTensors& parameters) {
  optim::NamedTensors gradients;
  for (const auto& [name, parameter] : parameters) gradients.emplace_back(name, parameter.grad());
  return gradients;
}

}  // namespace

std::int64_t total_steps_of(const TrainOptions& options, std::int64_t batches_per_epoch) {
  const std::int64_t steps = options.epochs * batches_per_epoch;
  return options.max_steps > 0 ? std::min(steps, options.max_steps) : steps;
}

Trainer::Trainer(const RunConfig& config, comm::Context& context, const data::DataSource& data,
                 std::shared_ptr<model::Model> own)
    : config_(config),
      context_(context),
      data_(data),
      model_(prepared(config, context,
                      own ? checked_model(std::move(own), data) : make_checked_model(config, data))),
      groups_(make_pipeline_groups(config, context)),
      layers_(layers_for(config, *model_)),
      pipeline_(context, groups_, layers_, options_of_pipeline()),
      parameters_(pipeline_.parameters()),
      gradient_norm_(groups_.pipeline, parameters_, parameter_names(*model_)),
      loader_(data.train, loader_options(config, context, data, groups_)),
      total_steps_(total_steps_of(config.train, loader_.batches_per_epoch())),
      optimizer_(optim::make_optimizer(config.optimizer, parameters_)),
      learning_rate_(make_learning_rate(config, total_steps_)),
      reports_(context.world()) {
  if (scales_loss(config.train.precision)) scaler_.emplace(config.scaler);
  if (config.train.ema_decay > 0) average_.emplace(parameters_, config.train.ema_decay);
}

parallel::PipelineOptions Trainer::options_of_pipeline() {
  parallel::PipelineOptions options = pipeline_options(config_);
  options.cuts = cuts_for(config_, context_, layers_, data_);
  options.update = [this] { update(); };
  return options;
}

std::optional<StepReport> Trainer::step(int stop_signal) {
  telemetry::TraceBuffer* trace = telemetry::main_of(context_.trace());
  if (trace != nullptr) trace->trace().begin_step(step_ + 1);
  const telemetry::TraceScope span(trace, "step", "step", {"step", step_ + 1});
  context_.status().set_action(text("step ", step_ + 1, ": waiting for data"));
  {
    const telemetry::TraceScope waiting(trace, "data", "waiting for data");
    batch_ = loader_.next();
  }
  report_ = {.step = step_ + 1,
             .lr = learning_rate_->at(step_),
             .samples = batch_.global_size,
             .stop_signal = stop_signal};
  pipeline_.zero_grad();
  report_.loss = pipeline_.accumulate(
      weighed(), cross_entropy,
      {.gradient_scale = scaler_ ? scaler_->scale() : 1, .number = static_cast<std::uint64_t>(report_.step)});
  step_ = report_.step;
  std::optional<StepReport> before = reports_.finish();
  reports_.start(report_);
  return before;
}

std::vector<parallel::MicroBatch> Trainer::weighed() const {
  // The mean over the global batch: its division is the first gradient, which costs no operation of its own.
  const double weight = 1 / static_cast<double>(batch_.global_size * data_.targets_per_sample);
  std::vector<parallel::MicroBatch> microbatches;
  for (const data::Example& samples : batch_.microbatches)
    microbatches.push_back({.input = samples.input, .target = samples.target, .weight = weight});
  return microbatches;
}

bool Trainer::on_all_stages(bool here) {
  if (groups_.pipeline.size() == 1) return here;
  at::Tensor word = at::full({1}, here ? 1 : 0, at::kInt);
  groups_.pipeline.all_reduce(word, comm::ReduceOp::kMin);
  return word.item<int>() == 1;
}

bool Trainer::gradients_are_usable() {
  if (!scaler_) {
    return config_.train.non_finite == "stop" || on_all_stages(optim::unscale_gradients(parameters_, 1));
  }
  report_.loss_scale = scaler_->scale();
  const bool finite = on_all_stages(scaler_->unscale(parameters_));
  finite ? scaler_->took_step() : scaler_->left_out_step(report_.step);
  return finite;
}

void Trainer::update() {
  for (const auto& prepare : before_changes_) prepare();
  report_.skipped = !gradients_are_usable();
  if (report_.skipped) return;
  if (observer_) observer_(gradients_of(parameters_));
  const bool clips = config_.train.clip_norm > 0;
  if (clips || report_.step % config_.run.log_every_steps == 0) report_.grad_norm = gradient_norm_.measure();
  if (clips) optim::clip_to_norm(parameters_, *report_.grad_norm, config_.train.clip_norm);
  optimizer_->step(report_.lr);
  if (average_) average_->update();
}

checkpoint::TensorMap Trainer::model_state() const {
  checkpoint::TensorMap state;
  for (const auto& [name, parameter] : parameters_) state.emplace(name, parameter.detach());
  for (const auto& [name, buffer] : pipeline_.buffers()) state.emplace(name, buffer.detach());
  return state;
}

Evaluation Trainer::evaluate() {
  context_.status().set_action(text("step ", step_, ": evaluation"));
  const telemetry::TraceScope span(telemetry::main_of(context_.trace()), "evaluation", "evaluation",
                                   {"step", step_});
  for (const auto& prepare : before_changes_) prepare();
  const auto averages = use_averages();
  const int replica = groups_.data ? groups_.data->rank() : 0,
            num_replicas = groups_.data ? groups_.data->size() : 1;
  const Evaluation evaluation =
      train::evaluate([this](const at::Tensor& input) { return pipeline_.evaluate(input); }, *data_.test,
                      data::slice_of(data_.test->size(), replica, num_replicas), context_.world());
  learning_rate_->observe(evaluation.loss);
  return evaluation;
}

std::map<std::string, at::Tensor> Trainer::state() {
  std::map<std::string, at::Tensor> state = optimizer_->state();
  const auto add = [&](const std::string& prefix, const std::map<std::string, at::Tensor>& part) {
    for (const auto& [name, tensor] : part) state.emplace(prefix + name, tensor);
  };
  add("lr/", learning_rate_->state());
  if (scaler_) add("scaler/", scaler_->state());
  if (average_) add("ema/", average_->state());
  return state;
}

void Trainer::seek(std::int64_t step) {
  step_ = step;
  loader_.seek(static_cast<std::uint64_t>(step / steps_per_epoch()), step % steps_per_epoch());
}

}  // namespace trireme::train
