#include "trireme/train/trainer.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/foreign_error.h"
#include "trireme/base/host.h"
#include "trireme/base/random.h"
#include "trireme/checkpoint/tensor_match.h"
#include "trireme/checkpoint/weights_file.h"
#include "trireme/model/convolution_scope.h"
#include "trireme/model/deferred.h"
#include "trireme/model/initialise.h"
#include "trireme/parallel/counted_memory.h"
#include "trireme/parallel/data/broadcast.h"
#include "trireme/parallel/tensor/joint_pass.h"
#include "trireme/train/batch_ramp.h"
#include "trireme/train/convolutions.h"
#include "trireme/train/internal/check.h"
#include "trireme/train/internal/exact_run.h"
#include "trireme/train/internal/first_weights.h"
#include "trireme/train/internal/form_loss.h"
#include "trireme/train/internal/local_steps.h"
#include "trireme/train/internal/offloading.h"
#include "trireme/train/internal/parts_of_tensors.h"
#include "trireme/train/internal/priority.h"
#include "trireme/train/internal/replica_labels.h"
#include "trireme/train/internal/serving.h"
#include "trireme/train/model_state.h"
#include "trireme/train/recomputed_layers.h"

namespace trireme::train {
namespace {

std::vector<std::string> parameter_names(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : module.named_parameters()) names.push_back(item.key());
  return names;
}

/// Threads that read ahead without being asked for: a rank's share of the host's, a few where disks are slow.
int most_readers(const comm::Context& context) {
  constexpr int kFew = 4;
  return std::max(kFew, available_cores() / context.local_world_size());
}

data::StreamOptions stream_options(const ParallelPlan& plan, const comm::Context& context,
                                   const PlanGroups& groups, const ObjectivePtr& objective,
                                   double count_of_sample, const data::Needed& needed) {
  const auto check_targets = [=](const data::Example& batch, std::span<const std::int64_t> indices) {
    objective->check_batch(batch, indices);
    check_count(*objective, batch, count_of_sample);
  };
  const RunConfig& config = plan.config();
  return {.global_batch = config.train.global_batch,
          .ramp = batch_ramp(config.train),
          .last_batch = last_batch(config),
          .num_microbatches = plan.num_microbatches(),
          .rank = groups.replicas ? groups.replicas->rank() : 0,
          .world_size = groups.replicas ? groups.replicas->size() : 1,
          .workers = config.data.workers,
          .most_workers = most_readers(context),
          .prefetch = static_cast<int>(config.data.prefetch),
          .memory_bytes = config.data.read_ahead_mib << 20,
          .seed = static_cast<std::uint64_t>(config.run.seed),
          .open_shards = config.data.open_shards,
          .balance = plan.balance(),
          .needed = needed,
          .pinned = plan.device() != c10::kCPU,
          .check_targets = check_targets,
          .trace = context.trace(),
          .log = context.log()};
}

/// On rank 0 the model gets the weights of the configuration's file.
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

/// Nothing is trained that the plan does not allow.
std::shared_ptr<model::Model> checked(const ParallelPlan& plan, const data::DataSource& data,
                                      std::shared_ptr<model::Model> own, const ObjectivePtr& own_objective) {
  parallel::count_allocations();  // before anything that a run holds is there
  check_data_of(plan, data, own_objective);
  return own ? checked_model(std::move(own), plan, data, own_objective)
             : make_checked_model(plan, data, own_objective);
}

/// What those layers have of parameters without memory.
std::vector<model::Layer> without_memory(std::vector<model::Layer> layers) {
  const auto has_memory = [](const auto& named) { return !named.second.is_meta(); };
  for (model::Layer& layer : layers) std::erase_if(layer.parameters, has_memory);
  return layers;
}

/// Memory on that device, and values from the seed, for layers that have none yet.
void materialise(const std::vector<model::Layer>& layers, model::Model& model, const RunConfig& config,
                 c10::Device device) {
  const model::FirstValuesOf those(without_memory(layers));
  for (const model::Layer& layer : layers) model::materialise(layer, device);
  model.initialise(static_cast<std::uint64_t>(config.run.seed));
}

/// Gives the model the values that all ranks begin with, those of rank 0, unless it is deferred: then they
/// follow from the seed, or from what is returned, on whichever rank they are made.
std::shared_ptr<const FirstWeights> prepare(const ParallelPlan& plan, comm::Context& context,
                                            model::Model& model) {
  if (model::is_deferred(model)) {
    const std::string& path = plan.config().model.weights;
    if (path.empty()) return nullptr;
    if (auto weights = FirstWeights::open(path, context, model)) return weights;
    materialise({model::whole(model)}, model, plan.config(), c10::kCPU);
  }
  take_weights(plan.config(), context, model);
  // Replicas of a stage get the values of the first one; stages, and sites, have to come from one rank, too.
  if (plan.is_cut() || plan.has_form() || plan.trains_apart())
    parallel::broadcast_module(context.world(), model);
  return nullptr;
}

/// What this rank makes of the whole model.
parallel::TensorForm form_of(const ParallelPlan& plan, const parallel::TensorFormOptions& options,
                             const std::shared_ptr<model::Model>& whole) {
  if (!plan.has_form()) return {.model = whole};
  return parallel::make_tensor_form(*whole, options);
}

/// Ranks of an asynchronous pipeline come to a step one after the other, and must not wait for its report.
StepReports make_reports(const ParallelPlan& plan, comm::Context& context) {
  if (!plan.asynchronous() && !plan.ranks_drift() && !plan.trains_apart())
    return StepReports(context.world());
  constexpr int kMostDrift = 64;  // steps of ranks without a bound: a report is a small tensor
  constexpr int kBundles = 4;     // under way between sites: each takes as long as their link does
  const auto staleness = static_cast<int>(plan.config().served.staleness);
  const int depth = plan.asynchronous()   ? context.world_size()
                    : plan.trains_apart() ? kBundles
                    : staleness < 0       ? kMostDrift
                                          : staleness + 1;
  std::vector<int> everybody(static_cast<std::size_t>(context.world_size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  return StepReports(*context.new_group(everybody, context.free_group_name("reports")), depth,
                     plan.trains_apart() ? Bundling::kByTime : Bundling::kNone);
}

at::Tensor state_of(const std::string& text) {
  at::Tensor state = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), state.data_ptr<std::uint8_t>());
  return state;
}

std::string text_of(const at::Tensor& state) {
  const auto* text = state.const_data_ptr<std::uint8_t>();
  return {text, text + state.numel()};
}

optim::NamedTensors gradients_of(const optim::NamedTensors& parameters) {
  optim::NamedTensors gradients;
  for (const auto& [name, parameter] : parameters) gradients.emplace_back(name, parameter.grad());
  return gradients;
}

}  // namespace

Trainer::Trainer(const RunConfig& config, comm::Context& context, const data::DataSource& data,
                 std::shared_ptr<model::Model> own, std::shared_ptr<const objective::Objective> own_objective)
    : Trainer(resolve_plan(config, context.world_size()), context, data, std::move(own),
              std::move(own_objective)) {}

Trainer::Trainer(const ParallelPlan& plan, comm::Context& context, const data::DataSource& data,
                 std::shared_ptr<model::Model> own, std::shared_ptr<const objective::Objective> own_objective)
    : context_(context),
      data_(data),
      groups_(make_groups(plan, context)),
      whole_(checked(plan, data, std::move(own), own_objective)),
      first_weights_(prepare(plan, context, *whole_)),
      form_options_({.group = groups_.tensor.value_or(context.self()),
                     .cut_sequences = plan.config().parallel.sequence,
                     .context = groups_.context}),
      form_(form_of(plan, form_options_, whole_)),
      model_(form_.model),
      objective_(objective_for(plan.config(), own_objective, {.data = data, .model = model_.get()})),
      count_of_sample_(objective_->count_all(data.train->trial_batch(1))),
      plan_(fit(plan, *whole_)),
      device_(device_for(plan_, context)),
      config_(plan_.config()),
      offload_(offload_for(plan_, context, device_)),
      activations_(activation_store_for(plan_, context, device_)),
      convolutions_found_(convolutions_for(plan_.convolutions(), plan_.precision(), context, *whole_,
                                           data.train->trial_batch(1).input, plan_.samples_of_microbatch())),
      choices_{{kConvolutions, state_of(to_text(convolutions_found_))}},
      exact_(plan_.exact() ? std::make_shared<ExactRun>(plan_, groups_.replicas) : nullptr),
      arriving_(plan_.served() || plan_.by_need() ? std::make_shared<ArrivingRun>() : nullptr),
      layers_(layers_for(plan_, *model_)),
      pipeline_(context, pipeline_groups(plan_, groups_), layers_, options_of_pipeline()),
      parameters_(pipeline_.parameters()),
      held_{.cut = cut_parameters(*model_), .pieces = pipeline_.pieces()},
      judged_(exact_ ? pipeline_.weights() : parameters_),
      gradient_norm_(plan_.is_in_parts() && !exact_
                         ? GradientNorm(holders(), parameters_, parameter_names(*model_), held_)
                         : GradientNorm(holders(), judged_, parameter_names(*model_))),
      feed_(data.train->open(stream_options(plan_, context, groups_, objective_, count_of_sample_, needed())),
            device_, computed_with()),
      calendar_(config_, batch_layout(config_, data.train->size())),
      optimizer_(
          updating_by_need(plan_, pipeline_, parameters_,
                           optimizer_for(plan_, context, parameters_, offload_,
                                         parts_of_tensors(groups_.tensor, held_, config_.optimizer.name)))),
      learning_rate_(make_learning_rate(config_, schedule_steps(config_, total_steps()))),
      outer_steps_(outer_steps_for(plan_, groups_, parameters_, pipeline_.buffers())),
      reports_(make_reports(plan_, context)),
      noise_(NoiseScale::make(plan_, pipeline_, layers_, groups_.pipeline.rank() == 0)),
      work_shares_(WorkShares::make(plan_)) {
  whole_.reset();
  first_weights_.reset();
  pipeline_.free_other_stages();
  if (plan_.precision().scales_loss) scaler_.emplace(config_.scaler);
  if (config_.train.ema_decay > 0) average_.emplace(parameters_, config_.train.ema_decay);
  if (arriving_) arriving_->begin(*optimizer_);
  if (hook_) hook_->attach_optimizer(optimizer_->state());
  if (hook_ && (scaler_ || plan_.skips_non_finite())) hook_before_step_.emplace(hook_);
  choices_[kAllReduces] = state_of(context.all_reduce_choices());
  if (work_shares_) feed_.deal(0, work_shares_->now());
  name_memory();
  if (plan_.rounds_weights() && has_common_weights() && context.is_main())
    context.log().info(
        "parallel.weight_compression = \"", config_.parallel.weight_compression,
        "\" does nothing here: the ranks have one copy of the weights in memory that they have "
        "in common, and gather nothing");
}

/// Looked at at every use: whoever restores the state restores the choice.
model::ConvolutionChoice Trainer::convolutions() const {
  std::string chosen = text_of(choices_.at(kConvolutions));
  if (chosen.empty()) return convolutions_found_;
  if (convolutions_read_.first != chosen)
    convolutions_read_ = {chosen, model::convolution_choice_from(chosen)};
  return convolutions_read_.second;
}

parallel::PipelineOptions Trainer::options_of_pipeline() {
  const model::ConvolutionScope convolutions_of_the_profile(convolutions());
  // One rank measures, alone: the whole model's layers are alike to their parts in how they compare.
  plan_ = measure(plan_, context_, plan_.has_form() ? layers_for(plan_, *whole_) : layers_, data_);
  layers_ = with_recomputed(plan_, context_, *model_, std::move(layers_), data_);
  if (activations_) {
    for (model::Layer& layer : layers_) layer = model::kept_in(activations_, std::move(layer));
  }
  parallel::PipelineOptions options = plan_.pipeline_options();
  hook_ = options.data_parallel.hook;
  if (exact_) {
    layers_ = exact_->keyed(std::move(layers_));
    exact_->add_to(options);
  }
  if (arriving_) layers_ = arriving_->arriving(std::move(layers_));
  if (plan_.served()) arriving_->add_to(options);
  options.update = [this] {
    update();
    if (step_ + 1 < total_steps()) feed_.copy_ahead();
  };
  options.device = device_;
  if (plan_.offloads_parameters()) options.elsewhere = offload_;
  options.materialise = [this,
                         deferred = model::is_deferred(*model_)](const std::vector<model::Layer>& mine) {
    if (deferred) materialise(mine, *model_, config_, device_);
    if (first_weights_) first_weights_->fill(mine, *model_);
    for (const model::Layer& layer : mine) {
      model::move_to(layer, device_);
      for (const auto& [name, parameter] : layer.parameters)
        parameter_bytes_[name] = static_cast<std::int64_t>(parameter.nbytes());
    }
  };
  return options;
}

at::Tensor Trainer::loss_of(const Fields& outputs, const Fields& targets) const {
  return plan_.has_form() ? loss_of_form(*objective_, form_, form_options_, {outputs, targets})
                          : objective_->loss_all(outputs, targets);
}

std::optional<StepReport> Trainer::step(int stop_signal) {
  const model::ConvolutionScope convolutions_of_the_step(convolutions());
  telemetry::TraceBuffer* trace = telemetry::main_of(context_.trace());
  if (trace != nullptr) trace->trace().begin_step(step_ + 1);
  const telemetry::TraceScope span(trace, "step", "step", {"step", step_ + 1});
  key_generators("step");
  const double began_s = now_s(), waited_s = comm_wait_s();
  report_ = report_of_step(stop_signal);
  if (noise_) noise_->begin_step(report_, *learning_rate_);
  optimizer_->set_lr(report_.lr);
  if (exact_) exact_->begin_step(step_);
  grad_norm_.reset();
  const auto run = [&] {
    if (pipeline_.drained()) start_stream();
    const parallel::JointPass of_layers(form_options_.group),
        of_sequences(groups_.context.value_or(context_.self()));
    return pipeline_.advance(static_cast<std::uint64_t>(report_.step));
  };
  report_.loss = within([this] { return text("step ", report_.step); }, run);
  if (exact_) report_.loss = exact_->sum_of_losses(report_.loss);
  if (outer_steps_) report_.loss *= count_of_batch_;
  if (!speaks_of_loss()) report_.loss = 0;
  // Behind everything that the step gave the device to do.
  if (grad_norm_.defined()) report_.grad_norm = grad_norm_.item<double>();
  if (noise_) noise_->end_step(report_);
  note_staleness();
  step_ = report_.step;
  if (!has_stepped_) MemoryLedger::of_process().reset_peak();  // what set-up took is no part of a step
  has_stepped_ = true;
  const data::LoadingReport loaded = loading();
  report_.data_waits = {{.seconds = loaded.waited_s, .stage = data::slowest_stage(loaded.counts)}};
  report_.work_s = {now_s() - began_s - (comm_wait_s() - waited_s)};
  const std::optional<StepReport> older = known(reports_.start(report_));
  if (older && older->stop_signal != 0)
    pipeline_.finish_after(static_cast<int>(step_ - stream_begin_) + pipeline_.asynchronous_margin());
  return older;
}

std::optional<StepReport> Trainer::known(std::optional<StepReport> report) {
  if (report && noise_) noise_->observe(*report);
  if (report && work_shares_) {
    if (const auto change = work_shares_->observe(*report, step_ + config_.data.prefetch)) deal(*change);
  }
  return report;
}

void Trainer::deal(const WorkShares::Change& change) {
  feed_.deal(static_cast<std::uint64_t>(change.from), change.shares);
  if (context_.is_main()) context_.log().info("data: ", change.why);
}

StepReport Trainer::report_of_step(int stop_signal) const {
  const data::BatchPlace batch = calendar_.batch(step_);
  return {.step = step_ + 1,
          .lr = rate_for_batch(config_, learning_rate_->at(step_), batch.full),
          .samples = batch.size,
          .full_batch = batch.full,
          .count = count_of_sample_ * static_cast<double>(batch.size),
          .stop_signal = stop_signal};
}

void Trainer::key_generators(std::string_view purpose) const {
  Random key(static_cast<std::uint64_t>(config_.run.seed), Random::key_of(purpose), step_,
             context_.rank() / plan_.tensor_ranks());
  at::manual_seed(key.bits());
}

void Trainer::start_stream() {
  stream_begin_ = step_;
  pipeline_.zero_grad();
  if (hook_ && scaler_) hook_->set_gradient_scale(scaler_->scale());
  if (hook_before_step_) hook_before_step_->take();
  parallel::Pipeline::Stream stream{
      .next = [this](int m) { return microbatch(m); },
      .loss = [this](const Fields& outputs, const Fields& targets) { return loss_of(outputs, targets); },
      .gradient_scale = scaler_ ? scaler_->scale() : 1};
  if (plan_.asynchronous()) {
    const std::int64_t end = calendar_.next_meeting(step_);
    stream.num_updates = static_cast<int>(end - step_);
    stream.shapes = shapes_before(end);
  }
  pipeline_.start(std::move(stream));
}

void Trainer::note_staleness() {
  if (plan_.ranks_drift()) report_.staleness = optimizer_->staleness();
  if (!plan_.asynchronous()) return;
  const parallel::Pipeline::Staleness staleness = pipeline_.staleness();
  report_.staleness = staleness.updates;
  report_.weight_versions = staleness.versions;
}

bool Trainer::on_all_holders(bool here) {
  if (holders().size() == 1) return here;
  at::Tensor word = at::full({1}, here ? 1 : 0, at::kInt);
  holders().all_reduce(word, comm::ReduceOp::kMin);
  return word.item<int>() == 1;
}

bool Trainer::gradients_are_usable() {
  if (!scaler_) {
    return !plan_.skips_non_finite() || on_all_holders(optim::unscale_gradients(judged_, 1));
  }
  report_.loss_scale = scaler_->scale();
  const bool finite = on_all_holders(scaler_->unscale(judged_));
  finite ? scaler_->took_step() : scaler_->left_out_step(report_.step);
  return finite;
}

void Trainer::update() {
  for (const auto& prepare : before_changes_) prepare();
  memory_at_update_ = MemoryLedger::of_process().now();
  // As layers have computed with them: sharded ones are gathered now, and apart behind the update.
  // Stages that update on their own time have no replicas.
  if (!plan_.asynchronous() && calendar_.checks_replicas(report_.step)) check_replicas(report_.step);
  if (outer_steps_ && steps_together()) outer_steps_->add_gradients();
  report_.skipped = !gradients_are_usable();
  if (report_.skipped) {
    if (hook_before_step_) hook_before_step_->bring_back();
    return note_skip();
  }
  skipped_in_a_row_ = 0;
  const bool clips = config_.train.clip_norm > 0;
  const bool logs = calendar_.logs(report_.step);
  if (plan_.by_need() && (observer_ || logs)) pipeline_.finish_gradients(parameters_);
  if (observer_)
    observer_(plan_.served() ? sums_over(context_.world(), parameters_) : gradients_of(parameters_));
  // Stages that update on their own time have no gradients at the same time.
  const bool asks = clips || (noise_ && noise_->measures());
  if (asks || (logs && !plan_.asynchronous() && !plan_.served())) grad_norm_ = gradient_norm_.measure();
  if (clips) optim::clip_to_norm(parameters_, grad_norm_, config_.train.clip_norm);
  optimizer_->step();
  // No forward comes before all are needed.
  if (plan_.by_need() && calendar_.shows_weights(report_.step)) optimizer_->arrive();
  if (average_) average_->update();
  if (outer_steps_) outer_steps_->after_step(report_.step);
}

void Trainer::check_replicas(std::int64_t step) {
  if (!replica_check_) {
    replica_check_ = make_replica_check(
        plan_, groups_, context_, {.weights = pipeline_.weights(), .updated = parameters_, .held = held_});
  }
  replica_check_->run(text("step ", step));
}

void Trainer::note_skip() {
  if (++skipped_in_a_row_ < config_.train.max_skipped_steps) return;
  throw DivergedError(text("step ", report_.step, ": ", skipped_in_a_row_,
                           " steps in a row were skipped, because gradients were not finite "
                           "(train.max_skipped_steps; learning rate ",
                           report_.lr,
                           "); lower optimizer.lr, warm up (lr.warmup_steps) or clip (train.clip_norm)"));
}

/// Those that were restored, and those of this run where there are none.
void Trainer::take_choices() {
  const model::ConvolutionChoice restored = convolutions();
  choices_[kConvolutions] = state_of(to_text(restored));
  const std::string all_reduces = context_.all_reduce_choices();
  context_.take_all_reduce_choices(text_of(choices_.at(kAllReduces)));
  const std::string taken = context_.all_reduce_choices();
  choices_[kAllReduces] = state_of(taken);
  if (!context_.is_main()) return;
  constexpr const char* kWhy = ", as the run began, so that its numbers stay";
  if (restored != convolutions_found_)
    context_.log().info("convolutions: ", describe(restored), kWhy, "; this machine would take ",
                        describe(convolutions_found_));
  if (taken != all_reduces) context_.log().info("all-reduces between hosts", kWhy);
}

void Trainer::seek(std::int64_t step) {
  optimizer_->restored();
  pipeline_.weights_changed();
  take_choices();
  if (noise_) noise_->restored();
  if (work_shares_) work_shares_->start_over(step);
  step_ = step;
  feed_.seek(static_cast<std::uint64_t>(step));
}

}  // namespace trireme::train
