#include "trireme/train/trainer.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/checkpoint/tensor_match.h"
#include "trireme/checkpoint/weights_file.h"
#include "trireme/schedule/program.h"
#include "trireme/train/gradient_norm.h"
#include "trireme/train/internal/check.h"
#include "trireme/train/model_state.h"
#include "trireme/train/precision.h"

namespace trireme::train {
namespace {

optim::NamedTensors parameters_of(const torch::nn::Module& module) {
  optim::NamedTensors parameters;
  for (const auto& item : module.named_parameters()) parameters.emplace_back(item.key(), item.value());
  return parameters;
}

data::LoaderOptions loader_options(const RunConfig& config, const comm::Context& context,
                                   const data::DataSource& data) {
  return {.global_batch = config.train.global_batch,
          .num_microbatches = static_cast<int>(config.train.accumulation),
          .rank = context.rank(),
          .world_size = context.world_size(),
          .workers = config.data.workers,
          .seed = static_cast<std::uint64_t>(config.run.seed),
          .num_classes = data.num_classes,
          .trace = context.trace()};
}

parallel::DataParallelOptions data_parallel_options(const RunConfig& config) {
  return {.bucket_mib = config.parallel.bucket_mib,
          .first_bucket_mib = std::min(1.0, config.parallel.bucket_mib),
          .unused_parameters = parallel::unused_parameters_of(config.parallel.unused_parameters),
          .scale = parallel::ReduceScale::kSum,
          .convolution_rule = config.train.convolution_rule,
          .hook = parallel::make_comm_hook(config.parallel.compression)};
}

/// The model, on rank 0 with the weights of the configuration's file; the others get rank 0's.
std::shared_ptr<model::Model> with_weights(const RunConfig& config, const comm::Context& context,
                                           const std::shared_ptr<model::Model>& model) {
  const std::string& path = config.model.weights;
  if (path.empty() || !context.is_main()) return model;
  const at::NoGradGuard no_grad;
  const checkpoint::TensorMap ours = state_of(*model);
  checkpoint::TensorMap found = checkpoint::load_weights_file(path).tensors;
  for (const std::string& name : checkpoint::drop_tied_copies(found, ours))
    context.log().info(path, ": '", name, "' is a second name of a tensor that the model takes");
  checkpoint::check_same_tensors(found, ours, path);
  for (const auto& [name, tensor] : ours) at::Tensor(tensor).copy_(found.at(name));
  return model;
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
      model_(own ? checked_model(std::move(own), data) : make_checked_model(config, data)),
      parameters_(parameters_of(*model_)),
      loader_(data.train, loader_options(config, context, data)),
      total_steps_(total_steps_of(config.train, loader_.batches_per_epoch())),
      optimizer_(optim::make_optimizer(config.optimizer, parameters_)),
      learning_rate_(make_learning_rate(config, total_steps_)),
      ddp_(context, with_weights(config, context, model_), data_parallel_options(config)),
      executor_(schedule::data_parallel(static_cast<int>(config.train.accumulation)), /*pipeline_rank=*/0,
                handlers(), context.status(), telemetry::main_of(context.trace())),
      reports_(context.world()),
      losses_(static_cast<std::size_t>(config.train.accumulation)) {
  model_->train();
  if (scales_loss(config.train.precision)) scaler_.emplace(config.scaler);
  if (config.train.ema_decay > 0) average_.emplace(parameters_, config.train.ema_decay);
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
  ddp_.zero_grad();
  executor_.run(static_cast<std::uint64_t>(report_.step));
  step_ = report_.step;
  std::optional<StepReport> before = reports_.finish();
  reports_.start(report_);
  return before;
}

parallel::ActionHandlers Trainer::handlers() {
  using schedule::Action;
  return {.forward = [this](const Action& a) { forward(static_cast<std::size_t>(a.microbatch)); },
          .backward = [this](const Action& a) { backward(static_cast<std::size_t>(a.microbatch)); },
          // The last backward has reduced the gradients while it ran, and waited for the rest at its end.
          .reduce_grad = [](const Action&) {},
          .step = [this](const Action&) { update(); }};
}

void Trainer::forward(std::size_t microbatch) {
  const data::Example& samples = batch_.microbatches[microbatch];
  if (samples.target.numel() == 0) return;  // models need not cope with empty batches
  const PrecisionScope scope(config_.train.precision);
  // One row of logits per target: per sample, or per token of a text.
  const at::Tensor logits = model_->forward(samples.input).to(at::kFloat).flatten(0, -2);
  losses_[microbatch] = at::cross_entropy_loss(logits, samples.target.flatten(), {}, at::Reduction::Sum);
}

void Trainer::backward(std::size_t microbatch) {
  const at::Tensor loss = std::exchange(losses_[microbatch], at::Tensor());
  const bool reduces = microbatch + 1 == losses_.size();
  if (!loss.defined()) {
    if (reduces) ddp_.reduce_without_backward();
    return;
  }
  // The mean over the global batch: its division is the first gradient, which costs no operation of its own.
  const double scale = 1 / static_cast<double>(batch_.global_size * data_.targets_per_sample);
  const at::Tensor first_gradient = at::full({}, scaler_ ? scale * scaler_->scale() : scale);
  if (reduces) {
    loss.backward(first_gradient);
  } else {
    const auto no_reduction = ddp_.no_sync();
    loss.backward(first_gradient);
  }
  report_.loss += loss.item<double>() * scale;
}

bool Trainer::gradients_are_usable() {
  if (!scaler_) return config_.train.non_finite == "stop" || optim::unscale_gradients(parameters_, 1);
  report_.loss_scale = scaler_->scale();
  const bool finite = scaler_->unscale(parameters_);
  finite ? scaler_->took_step() : scaler_->left_out_step(report_.step);
  return finite;
}

void Trainer::update() {
  for (const auto& prepare : before_changes_) prepare();
  report_.skipped = !gradients_are_usable();
  if (report_.skipped) return;
  if (observer_) observer_(gradients_of(parameters_));
  if (config_.train.clip_norm > 0) {
    report_.grad_norm = optim::clip_grad_norm(parameters_, config_.train.clip_norm);
  } else if (report_.step % config_.run.log_every_steps == 0) {
    report_.grad_norm = gradient_norm(parameters_);
  }
  optimizer_->step(report_.lr);
  if (average_) average_->update();
}

Evaluation Trainer::evaluate() {
  context_.status().set_action(text("step ", step_, ": evaluation"));
  const telemetry::TraceScope span(telemetry::main_of(context_.trace()), "evaluation", "evaluation",
                                   {"step", step_});
  for (const auto& prepare : before_changes_) prepare();
  const auto averages = use_averages();
  const Evaluation evaluation =
      train::evaluate(*model_, *data_.test, context_.world(), config_.train.precision);
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
