// Setup of a pipeline's rank, and the execution of its program. The computations of its actions are in
// engine_compute.cpp.
#include "trireme/parallel/pipeline/internal/engine.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/optim/norms.h"
#include "trireme/parallel/counted_memory.h"
#include "trireme/parallel/data/sparse_embeddings.h"
#include "trireme/parallel/pipeline/internal/placement.h"
#include "trireme/parallel/tensor/internal/whole_parameters.h"
#include "trireme/parallel/zero/rounded_parameters.h"
#include "trireme/telemetry/trace.h"

namespace trireme::parallel {
namespace {

using schedule::ActionKind;
using Places = std::vector<std::size_t>;

/// Adds the tensors of `from` whose names are new.
void add_named(optim::NamedTensors& to, const optim::NamedTensors& from) {
  for (const auto& item : from) {
    const auto has_name = [&](const auto& known) { return known.first == item.first; };
    if (std::none_of(to.begin(), to.end(), has_name)) to.push_back(item);
  }
}

Replica replica_of(const Stage& stage) {
  Replica replica;
  for (const model::Layer& layer : stage.layers()) {
    add_named(replica.parameters, layer.parameters);
    add_named(replica.buffers, layer.buffers);
  }
  return replica;
}

}  // namespace

Engine::Engine(comm::Context& context, PipelineGroups groups, schedule::Program program,
               const std::vector<model::Layer>& layers, const PipelineOptions& options)
    : group_(groups.pipeline),
      device_(options.device),
      exact_(options.exact),
      transfers_seed_(Random(options.activations.seed, Random::key_of("activations"),
                             groups.data ? groups.data->rank() : 0)
                          .bits()),
      update_(options.update),
      before_compute_(options.before_compute),
      shards_(options.zero.stage == ZeroStage::kNone ? std::nullopt
              : groups.shard_groups                  ? std::optional(groups.shard_groups->shards)
                                                     : groups.data),
      stages_(place_stages(program, layers, options.cuts)),
      skips_(model::carried_skips(layers)),
      tied_(group_, layers, stages_),
      transfers_(group_, device_, options.activations),
      executor_(std::move(program), group_.rank(), handlers(), context.status(),
                telemetry::main_of(context.trace())),
      shapes_(group_, stages_, mine_, weights_, device_) {
  check_same_pipeline(group_, this->program(), layers, stages_, options);
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    const std::vector<int>& ranks = stages_[i].ranks;
    if (std::find(ranks.begin(), ranks.end(), group_.rank()) != ranks.end())
      add_stage(static_cast<int>(i), layers, options);
  }
  if (has(last_stage()))
    local(last_stage()).set_head([this](const Fields& outputs, int m) { return loss_of(outputs, m); });
  if (is_asynchronous()) check_versions(groups);
  hold_weights(groups, options);
  common_->make_equal();
  tied_.make_equal();
  map_program();
  for (const auto& [name, parameter] : replica().parameters) optim::mark_wrapped(parameter, wrapper_);
  leave_to_others(layers);
}

/// Releases the parameters of other stages. A tied parameter that a layer of this rank also has stays.
void Engine::leave_to_others(const std::vector<model::Layer>& layers) {
  std::set<const at::TensorImpl*> settled;
  for (const auto& [number, stage] : mine_)
    for (const model::Layer& layer : stage.layers())
      for (const auto& [name, parameter] : layer.parameters) settled.insert(parameter.unsafeGetTensorImpl());
  for (const model::Layer& layer : layers) {
    for (const auto& [name, parameter] : layer.parameters) {
      optim::mark_wrapped(parameter, wrapper_);
      if (settled.insert(parameter.unsafeGetTensorImpl()).second) other_stages_.take(name, parameter);
    }
  }
}

void Engine::add_stage(int number, const std::vector<model::Layer>& layers, const PipelineOptions& options) {
  const Pipeline::StageLayers& stage = stages_[static_cast<std::size_t>(number)];
  mine_.try_emplace(number, std::vector(layers.begin() + stage.first, layers.begin() + stage.last),
                    StageOptions{.recompute = options.recompute, .wants_input_gradient = number > 0},
                    std::vector(skips_.begin() + stage.first, skips_.begin() + stage.last + 1));
}

/// The parameters of this rank's stages, without those that other stages also have.
std::vector<at::Tensor> Engine::own_parameters() const {
  std::vector<at::Tensor> parameters;
  for (const auto& [number, stage] : mine_) {
    for (const auto& [name, parameter] : replica_of(stage).parameters) {
      if (!tied_.names().contains(name)) parameters.push_back(parameter);
    }
  }
  return parameters;
}

/// In the order of the stages, on all ranks. A sharded stage has released most of its memory before the next
/// one is materialized.
void Engine::hold_weights(const PipelineGroups& groups, const PipelineOptions& options) {
  const std::optional<comm::Group>& data = groups.data;
  // An exact sum covers all replicas of one stage, and only its own gradients.
  common_.emplace(options.exact ? std::nullopt : data, options.data_parallel.scale, mine_);
  const std::shared_ptr<BucketPool> buckets = make_bucket_pool(groups, options.zero, own_parameters());
  for (const auto& [number, stage] : mine_) {
    if (options.materialise) options.materialise(stage.layers());
    for (const model::Layer& layer : stage.layers()) {
      if (!data || data->size() == 1) break;
      for (const auto& module : layer.modules) reject_sparse_embeddings(*module, layer.name);
    }
    const auto& ranks = stages_[static_cast<std::size_t>(number)].ranks;
    weights_[number] = make_stage_weights(
        replica_of(stage),
        {.stage = number,
         .holders = static_cast<int>(ranks.size()),
         .asynchronous = is_asynchronous(),
         .data = data,
         .shard_groups = groups.shard_groups,
         .reduction = options.data_parallel,
         .zero = options.zero,
         .offload = options.offload,
         .exact = options.exact,
         .buckets = buckets,
         .common = common_->names(),
         .shared = tied_.names(),
         .rounded = options.zero.working_type ? rounded_parameters(stage.layers()) : std::set<std::string>(),
         .gradient_is_final = options.gradient_is_final});
  }
}

void Engine::check_versions(const PipelineGroups& groups) const {
  const std::string& name = program().name;
  require(!groups.data || groups.data->size() == 1, "schedule '", name,
          "' updates each stage on its own time: pipelines side by side cannot share its gradients; 1f1b-rr "
          "replicates stages within one pipeline");
  require(!tied_.across_stages(), "schedule '", name,
          "' updates each stage on its own time, and the model has a parameter that several stages share, "
          "which would not stay equal; untie it, or take a schedule that updates at the end");
}

ActionHandlers Engine::handlers() {
  // Actions of micro-batches without samples are neither computed nor sent.
  const auto unless_empty = [this](ActionHandlers::Handler handler) {
    return [this, handler = std::move(handler)](const Action& action) {
      if (!is_empty(action)) handler(action);
    };
  };
  const auto compute = [this](void (Engine::*work)(const Action&)) {
    return [this, work](const Action& action) { with_weights(action, work); };
  };
  // A receive only starts here. The program defines when its message may be in transfer, often long before
  // the computation that needs it.
  const auto receive = [&](Arrivals& arrivals) {
    return unless_empty([this, &arrivals](const Action& a) { arrivals[place_of(a)] = transfers_.receive(); });
  };
  const auto sends = [&](Departures& departures) {
    return unless_empty([this, &departures](const Action& a) { send(departures, a); });
  };
  return {.forward = compute(&Engine::forward),
          .backward = compute(&Engine::backward),
          .backward_input = compute(&Engine::backward_input),
          .backward_weight = compute(&Engine::backward_weight),
          .send_forward = sends(outputs_),
          .receive_forward = receive(inputs_),
          .send_backward = sends(input_gradients_),
          .receive_backward = receive(output_gradients_),
          .recompute = compute(&Engine::recompute),
          .unshard = [this](const Action& a) { weights_of(a).unshard(); },
          .reshard = [this](const Action& a) { weights_of(a).reshard(); },
          .reduce_grad = [this](const Action& a) { weights_of(a).reduce(); },
          .step =
              [this](const Action&) {
                if (--num_steps_left_ == 0) update();
              }};
}

/// The weights also count actions of micro-batches without samples.
void Engine::with_weights(const Action& action, void (Engine::*work)(const Action&)) {
  StageWeights& weights = weights_of(action);
  weights.before(action);
  try {
    if (!is_empty(action) && before_compute_) before_compute_(action.microbatch);
    if (!is_empty(action)) within_stage(action.stage, [&] { (this->*work)(action); });
  } catch (...) {
    weights.aborted();
    throw;
  }
  weights.after(action);
  if (!schedule::makes_weight_gradient(action.kind)) return;
  done_.push_back(action.microbatch);
  for (const auto& [name, leaf] : weights.leaves()) count_as(MemoryKind::kGradients, leaf.grad());
}

/// Builds the lookup tables for the execution of the program.
void Engine::map_program() {
  runs_on_.clear();
  for (std::size_t rank = 0; rank < program().ranks.size(); ++rank) {
    for (const Action& action : program().ranks[rank]) {
      if (action.kind == ActionKind::kForward) runs_on_[place_of(action)] = static_cast<int>(rank);
    }
  }
}

void Engine::set_program(schedule::Program program) {
  executor_.restart(std::move(program));
  map_program();
}

void Engine::begin(Pipeline::Stream stream) {
  for (auto& [number, stage] : mine_) stage.clear();
  for (Arrivals* arrivals : {&inputs_, &output_gradients_}) arrivals->clear();
  for (Departures* departures : {&outputs_, &input_gradients_}) departures->clear();
  losses_.clear();
  batch_.clear();
  done_.clear();
  done_before_.clear();
  peak_live_ = 0;
  stream_ = std::move(stream);
  num_fed_ = 0;
  next_receive_ = 0;
  executor_.restart();
  num_steps_left_ = mine_.size();
  for (const auto& [number, weights] : weights_) weights->begin(program(), group_.rank());
  for (const Fields& inputs : stream_.shapes) shapes_.learn(inputs);
  for (int m = 0; stream_.shapes.empty() && m < program().num_microbatches; ++m) {
    if (microbatch(m).rows() > 0) shapes_.learn(microbatch(m).input);
  }
  tied_.set_aside();
  transfers_.begin([this] { return next_incoming(); });
}

int Engine::num_updates() const {
  const auto steps = std::ranges::count(actions(), ActionKind::kStep, &Action::kind);
  return static_cast<int>(steps / std::ssize(mine_));
}

/// A rank with several stages updates at the STEP of the last one.
void Engine::run_to_update(std::uint64_t number) {
  const std::uint64_t before = num_updates_;
  update_under_way_ = number;
  while (num_updates_ == before && !at_end()) executor_.run_to_update(number);
  if (executor_.at_end()) transfers_.finish();
}

void Engine::continue_with(schedule::Program program) {
  executor_.replace(std::move(program), next_receive_);
  map_program();
  for (const auto& [number, weights] : weights_) weights->continue_with(this->program(), group_.rank());
}

UnreadLoss Engine::take_loss() {
  if (losses_.empty()) return {};
  std::vector<at::Tensor> losses;
  std::vector<double> weights;
  for (const auto& [number, loss] : losses_) {
    losses.push_back(loss.value);
    weights.push_back(loss.weight);
  }
  losses_.clear();
  return {at::stack(losses), std::move(weights), exact_};
}

const MicroBatch& Engine::microbatch(int number) {
  for (; num_fed_ <= number; ++num_fed_) batch_[num_fed_] = stream_.next(num_fed_);
  return batch_.at(number);
}

std::optional<Transfers::Incoming> Engine::next_incoming() {
  while (next_receive_ < actions().size()) {
    const Action& action = actions()[next_receive_++];
    if (!schedule::is_receive(action.kind) || is_empty(action)) continue;
    const bool forward = action.kind == ActionKind::kReceiveForward;
    const int source = forward ? action.stage - 1 : action.stage + 1;
    // A gradient has the shape of its output.
    const EdgeSpec& edge = edge_behind(forward ? source : action.stage, action.microbatch);
    return Transfers::Incoming{.source = rank_of(source, action.microbatch),
                               .specs = forward ? edge.tensors : edge.gradients(),
                               .as_they_are = forward ? edge.without_gradient : Places()};
  }
  return std::nullopt;
}

/// A message can be reproduced: the seed of its stochastic rounding depends only on its place in the run.
void Engine::send(Departures& departures, const Action& action) {
  const bool forward = action.kind == ActionKind::kSendForward;
  const int next = forward ? action.stage + 1 : action.stage - 1;
  const EdgeSpec& edge = edge_behind(forward ? action.stage : next, action.microbatch);
  Random drawn(transfers_seed_, update_under_way_, action.microbatch, action.stage, forward);
  transfers_.send(take(departures, place_of(action)),
                  {.destination = rank_of(next, action.microbatch),
                   .specs = forward ? edge.tensors : edge.gradients(),
                   .as_they_are = forward ? edge.without_gradient : Places(),
                   .seed = drawn.bits()});
}

void Engine::finish_gradients(const optim::NamedTensors& parameters) {
  for (const auto& [number, weights] : weights_) weights->finish(parameters);
}

void Engine::zero_grad() {
  for (const auto& [number, weights] : weights_) weights->zero_grad();
}

/// Each square is counted once: that of a piece by its owner, that of another parameter by its first holder.
double Engine::clip_grad_norm(double max_norm) {
  const at::NoGradGuard no_grad;
  require(!is_asynchronous(), "schedule '", program().name,
          "' updates each stage on its own time: there is no moment at which all gradients are there, whose ",
          "norm would be clipped; take a schedule that updates at the end of a step");
  for (const auto& [number, stage] : mine_) require_whole_parameters(stage.layers(), "Pipeline");
  optim::NamedTensors parameters = replica().parameters;
  std::set<const at::TensorImpl*> seen;  // one tensor may have several names
  std::erase_if(parameters,
                [&](const auto& item) { return !seen.insert(item.second.unsafeGetTensorImpl()).second; });
  const Pieces in_pieces = pieces();
  std::vector<at::Tensor> counted;
  for (const auto& [name, parameter] : parameters) {
    const bool counts =
        in_pieces.contains(name) || (tied_.is_first_holder(name) && (!shards_ || shards_->rank() == 0));
    if (counts && parameter.grad().defined()) counted.push_back(parameter.grad());
  }
  at::Tensor square = at::full({1}, optim::sum_of_squared_norms(counted), at::kDouble);
  if (shards_) shards_->all_reduce(square);
  group_.all_reduce(square);
  const double norm = square.sqrt().item<double>();
  optim::clip_to_norm(parameters, norm, max_norm);
  return norm;
}

Replica Engine::replica() const {
  Replica replica;
  for (const auto& [number, stage] : mine_) {
    add_named(replica.parameters, weights_.at(number)->parameters());
    add_named(replica.buffers, replica_of(stage).buffers);
  }
  return replica;
}

Pieces Engine::pieces() const {
  Pieces all;
  for (const auto& [number, weights] : weights_)
    all.insert(weights->pieces().begin(), weights->pieces().end());
  return all;
}

optim::NamedTensors Engine::weights() const {
  optim::NamedTensors all;
  for (const auto& [number, weights] : weights_) add_named(all, weights->leaves());
  return all;
}

void Engine::weights_changed() {
  for (const auto& [number, weights] : weights_) weights->changed();
}

std::set<std::string> Engine::unsplit() const {
  std::set<std::string> all;
  for (const auto& [number, stage] : mine_) all.insert(stage.unsplit().begin(), stage.unsplit().end());
  return all;
}

double Engine::waited_s() const {
  double seconds = transfers_.waited_s();
  for (const auto& [number, weights] : weights_) seconds += weights->waited_s();
  return seconds;
}

Pipeline::Staleness Engine::staleness() const {
  Pipeline::Staleness most;
  for (const auto& [number, weights] : weights_) {
    const Pipeline::Staleness its = weights->staleness();
    most = {.updates = std::max(most.updates, its.updates),
            .versions = std::max(most.versions, its.versions)};
  }
  return most;
}

}  // namespace trireme::parallel
