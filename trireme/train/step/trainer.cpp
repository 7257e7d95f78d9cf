#include "trireme/train/step/trainer.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/foreign_error.h"
#include "trireme/base/random.h"
#include "trireme/checkpoint/checkpoint_part.h"
#include "trireme/checkpoint/shard_exchange.h"
#include "trireme/parallel/tensor/joint_pass.h"
#include "trireme/telemetry/rank_usage.h"
#include "trireme/train/config/batch_ramp.h"
#include "trireme/train/parts/internal/offloading.h"
#include "trireme/train/run/run.h"
#include "trireme/train/step/internal/check.h"
#include "trireme/train/step/internal/trainer_setup.h"

namespace trireme::train {
namespace {

UpdatedParameters updated_parameters(const TrainerSetup& setup, const parallel::Pipeline& pipeline) {
  const optim::NamedTensors all = pipeline.parameters();
  return {.all = all,
          .clip_parameters = setup.options.exact ? pipeline.weights() : all,
          .held = {.cut = cut_parameters(*setup.model.form.model), .pieces = pipeline.pieces()},
          .offload = setup.offload,
          .offloaded_storage = offloaded_storage_of(setup.offload)};
}

data::Needed computed_by(const parallel::Pipeline& pipeline) {
  return {.inputs = pipeline.has_first_stage(), .targets = pipeline.has_last_stage()};
}

optim::NamedTensors gradients_of(const optim::NamedTensors& parameters) {
  optim::NamedTensors gradients;
  for (const auto& [name, parameter] : parameters) gradients.emplace_back(name, parameter.grad());
  return gradients;
}

/// A sum is not finite if an element is not. Large numbers may overflow, so then each element is checked.
bool is_finite(const at::Tensor& tensor) {
  if (!tensor.is_floating_point()) return true;
  const at::NoGradGuard no_grad;
  return std::isfinite(tensor.sum().item<double>()) || at::isfinite(tensor).all().item<bool>();
}

/// The same for an offloaded tensor, piece by piece.
bool is_finite(const checkpoint::Shard& shard) {
  if (!shard.offloaded_storage) return is_finite(shard.tensor);
  const checkpoint::Box whole = checkpoint::whole_box(shard.tensor.sizes());
  return std::ranges::all_of(
      checkpoint::pieces_of(whole, shard.tensor.element_size(), checkpoint::kPieceBytes),
      [&](const checkpoint::Box& piece) {
        return is_finite(
            shard.offloaded_storage->fetch(checkpoint::view_of(shard.tensor.detach(), whole, piece)));
      });
}

}  // namespace

Trainer::Trainer(const RunConfig& config, comm::Context& context, const data::DataSource& data,
                 std::shared_ptr<model::Model> own, std::shared_ptr<const objective::Objective> own_objective)
    : Trainer(resolve_plan(config, context.world_size()), context, data, std::move(own),
              std::move(own_objective)) {}

Trainer::Trainer(const ParallelPlan& plan, comm::Context& context, const data::DataSource& data,
                 std::shared_ptr<model::Model> own, std::shared_ptr<const objective::Objective> own_objective)
    : Trainer(set_up_trainer({.plan = plan,
                              .context = context,
                              .data = data,
                              .own_model = std::move(own),
                              .own_objective = std::move(own_objective)})) {}

Trainer::Trainer(TrainerSetup&& setup)
    : context_(setup.context),
      data_(setup.data),
      plan_(setup.plan),
      groups_(setup.groups),
      model_(setup.model),
      pipeline_(context_, setup.pipeline_groups, model_.layers, setup.options),
      parameters_(updated_parameters(setup, pipeline_)),
      optimizer_(set_up_optimizer(setup, pipeline_, parameters_)),
      batches_(plan_, context_, groups_, data_, model_, computed_by(pipeline_)),
      learning_rate_(make_learning_rate(plan_.config(), total_steps())),
      reports_(set_up_reports(setup.parts, context_, model_.device)),
      parts_(std::move(setup.parts)) {
  pipeline_.free_other_stages();
  *setup.update = [this] {
    update();
    if (steps_done_ + 1 < total_steps()) batches_.feed().copy_ahead();
  };
  const TrainerObjects objects{.plan = plan_,
                               .context = context_,
                               .groups = groups_,
                               .model = model_,
                               .pipeline = pipeline_,
                               .parameters = parameters_,
                               .optimizer = *optimizer_,
                               .learning_rate = *learning_rate_,
                               .batches = batches_,
                               .skips_on_device = !model_.device.is_cpu() && optimizer_->can_leave_out() &&
                                                  std::ranges::none_of(parts_, &StepPart::asks_for_skips)};
  for (const auto& part : parts_) part->attach(objects);
}

Trainer::~Trainer() = default;

double Trainer::rate_of(const RunConfig& config, std::int64_t step) const {
  const at::NoGradGuard no_grad;
  const StepSchedule step_schedule(config, batch_layout(config, data_.train->size()));
  const auto rate = make_learning_rate(config, step_schedule.total_steps());
  const std::map<std::string, at::Tensor> learnt = learning_rate_->state();
  for (auto& [name, tensor] : rate->state()) {
    if (const auto found = learnt.find(name); found != learnt.end()) at::Tensor(tensor).copy_(found->second);
  }
  return rate_for_batch(config, rate->at(step - 1), step_schedule.batch(step - 1).full);
}

// A step.

std::optional<StepReport> Trainer::step(int stop_signal) {
  const auto scopes = compute_scopes();
  telemetry::TraceBuffer* trace = telemetry::main_of(context_.trace());
  if (trace != nullptr) trace->trace().begin_step(steps_done_ + 1);
  const telemetry::TraceScope span(trace, "step", "step", {"step", steps_done_ + 1});
  seed_generators("step");
  const double began_s = now_s(), waited_s = counters().comm_wait_s;
  step_ = begin_step(stop_signal);
  for (const auto& part : parts_) part->begin_step(step_);
  optimizer_->set_lr(step_.report.lr);
  const parallel::UnreadLoss loss =
      within([this] { return text("step ", step_.report.step); }, [&] { return run_program(); });
  if (model_.reports_loss())
    step_.completions.push_back([loss](StepReport& report) { report.loss = loss.read(); });
  for (const auto& part : parts_) part->end_step(step_);
  steps_done_ = step_.report.step;
  is_updating_ = false;
  const data::LoadingReport loaded = loading();
  step_.report.data_waits = {{.seconds = loaded.waited_s, .stage = data::slowest_stage(loaded.counts)}};
  step_.report.work_s = {now_s() - began_s - (counters().comm_wait_s - waited_s)};
  return known(reports_.start(step_.report, std::move(step_.completions)));
}

Step Trainer::begin_step(int stop_signal) const {
  const data::BatchPlace batch = step_schedule().batch(steps_done_);
  const std::int64_t number = steps_done_ + 1;
  return {.report = {.step = number,
                     .lr = rate_for_batch(plan_.config(), learning_rate_->at(steps_done_), batch.full),
                     .samples = batch.size,
                     .full_batch = batch.full,
                     .count = model_.count_of_sample * static_cast<double>(batch.size),
                     .stop_signal = stop_signal},
          .logs = step_schedule().logs(number),
          .is_observed = listeners_.gradients != nullptr,
          .count = step_.count};
}

/// Runs until this rank's last update of the step. Returns this rank's part of the loss.
parallel::UnreadLoss Trainer::run_program() {
  if (pipeline_.drained()) {
    pipeline_.zero_grad();
    batches_.begin_stream(steps_done_);
    parallel::Pipeline::Stream stream{
        .next = [this](int m) { return microbatch(m); },
        .loss = [this](const Fields& outputs,
                       const Fields& targets) { return model_.loss_of(outputs, targets); }};
    for (const auto& part : parts_) part->begin_stream(stream, steps_done_);
    pipeline_.start(std::move(stream));
  }
  const parallel::JointPass of_layers(model_.form_options.group),
      of_sequences(groups_.context.value_or(context_.self()));
  return pipeline_.advance_round_unread(static_cast<std::uint64_t>(step_.report.step));
}

parallel::MicroBatch Trainer::microbatch(int m) {
  const auto [steps, number] = batches_.place_of(m);
  if (number == 0) take_batch(steps);
  // The division by the count of the global batch is the first gradient, so it costs no operation.
  const double count = step_.count.value();
  const double weight = count > 0 ? 1 / count : 0;
  for (const auto& part : parts_)
    part->microbatch_enters(batches_.feed().batch().microbatches[number], weight);
  data::Example samples = batches_.feed().microbatch(number);
  return {.input = std::move(samples.input), .target = std::move(samples.target), .weight = weight};
}

void Trainer::take_batch(std::int64_t steps) {
  const data::StepBatch& batch = batches_.next(steps);
  step_.count.reset();
  for (const auto& part : parts_) part->batch_arrived(step_, batch);
  if (step_.count) return;
  step_.count = batches_.global_count();
  if (batches_.counts_by_value()) step_.report.count = *step_.count;
}

void Trainer::update() {
  is_updating_ = true;
  tell_of_changes();
  for (const auto& part : parts_) {
    part->gradients_ready(step_);
    if (step_.report.skipped) break;
  }
  if (step_.report.skipped) {
    for (const auto& part : parts_) part->skipped(step_);
    return;
  }
  if (listeners_.gradients) observe_gradients();
  for (const auto& part : parts_) part->before_update(step_);
  step_.leave_out.defined() ? optimizer_->step(step_.leave_out) : optimizer_->step();
  for (const auto& part : parts_) part->updated(step_);
}

void Trainer::observe_gradients() {
  std::optional<optim::NamedTensors> gradients;
  for (const auto& part : parts_) {
    if (!gradients) gradients = part->observed_gradients();
  }
  listeners_.gradients(gradients ? *gradients : gradients_of(parameters_.all));
}

std::optional<StepReport> Trainer::known(std::optional<StepReport> report) {
  if (!report) return report;
  for (const auto& part : parts_) part->reported(*report, steps_done_);
  return report;
}

// Between steps.

std::optional<std::int64_t> Trainer::whole_step() const {
  const bool is_alone = std::ranges::none_of(
      parts_, [](const auto& part) { return part->completion() == Completion::kCollective; });
  const bool updates_alone = drained() || !updates_under_way(plan_.config());
  return is_alone && updates_alone && !is_updating_ ? std::optional(steps_done_) : std::nullopt;
}

void Trainer::complete_own_state() {
  for (const auto& part : parts_) part->complete_own_state();
}

void Trainer::synchronize() {
  for (const auto& part : parts_) part->synchronize();
}

void Trainer::complete_state() {
  synchronize();
  for (const auto& part : parts_) part->complete_state();
  optimizer_->pull_state();
}

Evaluation Trainer::evaluate() {
  tell_of_changes();
  synchronize();
  const auto scopes = compute_scopes();
  context_.status().set_action(text("step ", steps_done_, ": evaluation"));
  context_.status().usage().enter(telemetry::Activity::kEvaluation);
  const telemetry::TraceScope span(telemetry::main_of(context_.trace()), "evaluation", "evaluation",
                                   {"step", steps_done_});
  require(data_.test != nullptr, "data set ", data_.name, " has no second split to evaluate on");
  seed_generators("evaluation");
  const auto weights = evaluated_weights();
  if (!weights.empty()) pipeline_.weights_changed();
  const int num_replicas = groups_.replicas ? groups_.replicas->size() : 1;
  const parallel::JointPass of_layers(model_.form_options.group),
      of_sequences(groups_.context.value_or(context_.self()));
  const auto evaluate_all = [&] {
    return train::evaluate([this](const Fields& inputs) { return evaluated(inputs); },
                           {.dataset = *data_.test,
                            .part = data::slice_of(data_.test->size(), replica(), num_replicas),
                            .batch = plan_.samples_of_microbatch(),
                            .needed = batches_.needed(),
                            .longest_part = (data_.test->size() + num_replicas - 1) / num_replicas,
                            .sit_out = [this] { pipeline_.sit_out_evaluation(); }},
                           *model_.objective, context_);
  };
  const Evaluation evaluation =
      within([this] { return text("the evaluation after step ", steps_done_); }, evaluate_all);
  if (!weights.empty()) pipeline_.weights_changed();
  learning_rate_->observe(evaluation.loss);
  return evaluation;
}

Fields Trainer::evaluated(const Fields& inputs) {
  Fields outputs = pipeline_.evaluate(pipeline_.has_first_stage() ? inputs.on(model_.device) : inputs);
  if (!model_.is_model_parallel() || !outputs.at(0).defined()) return outputs;
  outputs = parallel::whole_outputs(model_.form, outputs, model_.form_options);
  return model_.reports() ? outputs : Fields(at::Tensor());
}

std::vector<std::shared_ptr<void>> Trainer::evaluated_weights() {
  std::vector<std::shared_ptr<void>> scopes;
  for (const auto& part : parts_) {
    if (auto scope = part->evaluated_weights()) scopes.push_back(std::move(scope));
  }
  return scopes;
}

std::vector<std::shared_ptr<void>> Trainer::compute_scopes() {
  std::vector<std::shared_ptr<void>> scopes;
  for (const auto& part : parts_) {
    if (auto scope = part->compute_scope()) scopes.push_back(std::move(scope));
  }
  return scopes;
}

void Trainer::tell_of_changes() const {
  for (const auto& prepare : listeners_.before_changes) prepare();
}

void Trainer::seed_generators(std::string_view purpose) const {
  Random key(static_cast<std::uint64_t>(plan_.config().run.seed), Random::key_of(purpose), steps_done_,
             groups_.draw_number);
  at::manual_seed(key.bits());
}

// State.

StateParts Trainer::model_state() {
  checkpoint::TensorMap parameters, buffers;
  for (const auto& [name, parameter] : parameters_.all) parameters.emplace(name, parameter.detach());
  for (const auto& [name, buffer] : pipeline_.buffers()) buffers.emplace(name, buffer.detach());
  StateParts state = {state_part("", parameters, parameters_.held),
                      state_part("", buffers, parameters_.held)};
  state[0].must_be_finite = true;
  for (checkpoint::Shard& shard : state[0].shards) {
    if (shard.tensor.is_meta()) shard.offloaded_storage = parameters_.offloaded_storage;
  }
  // Each replica changes its own buffers.
  state[1].changes = ChangesIn::kForward;
  for (checkpoint::Shard& shard : state[1].shards) shard.replicas = checkpoint::Replicas::kFirstCounts;
  for (const auto& part : parts_) part->change_model_state(state);
  return state;
}

StateParts Trainer::state() {
  StateParts state = model_state();
  state.push_back(state_part(checkpoint::kOptimizerPrefix, optimizer_->state(), parameters_.held));
  state.back().must_be_finite = true;
  for (checkpoint::Shard& shard : state.back().shards) {
    if (shard.tensor.is_meta()) shard.offloaded_storage = parameters_.offloaded_storage;
  }
  state.push_back(
      state_part(text(checkpoint::kOptimizerPrefix, "lr/"), learning_rate_->state(), parameters_.held));
  for (const auto& part : parts_) part->add_state(state);
  return state;
}

std::string Trainer::not_finite() {
  for (const StatePart& part : state()) {
    for (const checkpoint::Shard& shard : part.shards) {
      if (part.must_be_finite && !is_finite(shard)) return shard.name;
    }
  }
  return "";
}

void Trainer::seek(std::int64_t step) {
  optimizer_->restored();
  pipeline_.weights_changed();
  steps_done_ = step;
  batches_.feed().seek(static_cast<std::uint64_t>(step));
  for (const auto& part : parts_) part->restored(step);
}

// Reports.

StepCounters Trainer::counters() const {
  StepCounters counters{.comm_wait_s = batches_.waited_s() + pipeline_.waited_s() + optimizer_->waited_s(),
                        .sent_to_stages_bytes = pipeline_.sent_bytes()};
  for (const auto& part : parts_) part->count(counters);
  return counters;
}

void Trainer::summarize(RunResult& result) const {
  for (const auto& part : parts_) part->summarize(result);
}

std::int64_t Trainer::skipped_in_a_row() const {
  std::int64_t steps = 0;
  for (const auto& part : parts_) steps = std::max(steps, part->skipped_in_a_row());
  return steps;
}

MemoryReport Trainer::memory() const {
  MemoryReport report;
  for (const auto& part : parts_) part->report_memory(report);
  return report;
}

}  // namespace trireme::train
