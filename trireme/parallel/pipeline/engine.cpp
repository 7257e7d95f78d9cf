// How a rank of a pipeline is set up and its program run. What its actions compute is in engine_compute.cpp.
#include "trireme/parallel/pipeline/internal/engine.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/parallel/data/sparse_embeddings.h"
#include "trireme/parallel/pipeline/internal/placement.h"
#include "trireme/telemetry/trace.h"

namespace trireme::parallel {
namespace {

using schedule::ActionKind;

/// Those of `from` whose names are new.
void add_named(optim::NamedTensors& to, const optim::NamedTensors& from) {
  for (const auto& item : from) {
    const auto has_name = [&](const auto& known) { return known.first == item.first; };
    if (std::none_of(to.begin(), to.end(), has_name)) to.push_back(item);
  }
}

void add_tensors_of(const Stage& stage, Replica& replica) {
  for (const model::Layer& layer : stage.layers()) {
    add_named(replica.parameters, layer.parameters);
    add_named(replica.buffers, layer.buffers);
  }
}

bool learns(const Replica& replica) {
  return std::any_of(replica.parameters.begin(), replica.parameters.end(),
                     [](const auto& item) { return item.second.requires_grad(); });
}

bool finishes_weight_gradient(const schedule::Action& action) {
  return action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight;
}

/// Updates of the stage before the forward of each micro-batch, on the rank that runs it.
std::vector<int> updates_before_forward(const schedule::Program& program, int stage) {
  std::vector<int> updates(static_cast<std::size_t>(program.num_microbatches), 0);
  for (const std::vector<schedule::Action>& actions : program.ranks) {
    int done = 0;
    for (const schedule::Action& action : actions) {
      if (action.stage != stage) continue;
      done += action.kind == ActionKind::kStep ? 1 : 0;
      if (action.kind == ActionKind::kForward) updates[static_cast<std::size_t>(action.microbatch)] = done;
    }
  }
  return updates;
}

/// The version of the stage's weights that each micro-batch uses: updates since the start.
std::vector<int> versions_used(const schedule::Program& program, int stage) {
  using schedule::WeightVersions;
  if (program.versions == WeightVersions::kVertical) return updates_before_forward(program, 0);
  if (program.versions != WeightVersions::kOneBehind) return updates_before_forward(program, stage);
  std::vector<int> versions;
  for (int m = 0; m < program.num_microbatches; ++m)
    versions.push_back(std::max(0, m / program.update_every - 1));
  return versions;
}

}  // namespace

Engine::Engine(comm::Context& context, PipelineGroups groups, schedule::Program program,
               const std::vector<model::Layer>& layers, const PipelineOptions& options)
    : group_(groups.pipeline),
      update_(options.update),
      stages_(place_stages(program, layers, options.cuts)),
      skips_(model::carried_skips(layers)),
      tied_(group_, layers, stages_),
      transfers_(group_),
      executor_(std::move(program), group_.rank(), handlers(), context.status(),
                telemetry::main_of(context.trace())),
      shapes_(group_, stages_, mine_) {
  check_same_pipeline(group_, this->program(), layers, stages_, options);
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    const std::vector<int>& ranks = stages_[i].ranks;
    if (std::find(ranks.begin(), ranks.end(), group_.rank()) != ranks.end())
      add_stage(static_cast<int>(i), layers, options);
  }
  if (has(last_stage()))
    local(last_stage()).set_head([this](const at::Tensor& output, int m) { return loss_of(output, m); });
  tied_.make_equal();
  if (is_asynchronous()) check_versions(groups);
  if (groups.data && groups.data->size() > 1) replicate(*groups.data, options.data_parallel);
}

void Engine::add_stage(int number, const std::vector<model::Layer>& layers, const PipelineOptions& options) {
  const Pipeline::StageLayers& stage = stages_[static_cast<std::size_t>(number)];
  const auto [at, fresh] =
      mine_.try_emplace(number, std::vector(layers.begin() + stage.first, layers.begin() + stage.last),
                        StageOptions{.recompute = options.recompute, .wants_input_gradient = number > 0},
                        std::vector(skips_.begin() + stage.first, skips_.begin() + stage.last + 1));
  if (!is_asynchronous()) return;
  Replica replica;
  add_tensors_of(at->second, replica);
  versions_.emplace(std::move(replica.parameters));
}

/// In the order of the stages, on all ranks.
void Engine::replicate(const comm::Group& data, DataParallelOptions options) {
  options.end = ReductionEnd::kOnRequest;
  for (const auto& [number, stage] : mine_) {
    for (const model::Layer& layer : stage.layers()) {
      for (const auto& module : layer.modules) refuse_sparse_embeddings(*module, layer.name);
    }
    Replica replica;
    add_tensors_of(stage, replica);
    if (learns(replica)) replicas_.try_emplace(number, data, std::move(replica), options);
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
  const auto nothing = [](const Action&) {};
  // What there are no samples for is not computed, and not sent.
  const auto unless_empty = [this](ActionHandlers::Handler handler) {
    return [this, handler = std::move(handler)](const Action& action) {
      if (!is_empty(action)) handler(action);
    };
  };
  // A receive is only begun here: the program says when its message can be under way, often long before a
  // computation needs it.
  const auto receive = [&](Arrivals& arrivals) {
    return unless_empty([this, &arrivals](const Action& a) { arrivals[place_of(a)] = transfers_.receive(); });
  };
  const auto send = [&](Departures& departures, int direction) {
    return unless_empty([this, &departures, direction](const Action& a) {
      transfers_.send(take(departures, place_of(a)), rank_of(a.stage + direction, a.microbatch));
    });
  };
  return {.forward = unless_empty([this](const Action& a) { forward(a); }),
          .backward = [this](const Action& a) { weight_gradient(a, [&] { backward(a); }); },
          .backward_input = unless_empty([this](const Action& a) { backward(a); }),
          .backward_weight =
              [this](const Action& a) {
                weight_gradient(a, [&] { local(a.stage).backward_weight(a.microbatch); });
              },
          .send_forward = send(outputs_, +1),
          .receive_forward = receive(inputs_),
          .send_backward = send(input_gradients_, -1),
          .receive_backward = receive(output_gradients_),
          .recompute = unless_empty([this](const Action& a) { local(a.stage).recompute(a.microbatch); }),
          // The last weight gradient of the stage has begun it.
          .reduce_grad = nothing,
          .step =
              [this](const Action&) {
                if (--num_steps_left_ == 0) update();
              }};
}

/// What is looked up while it runs.
void Engine::map_program() {
  runs_on_.clear();
  num_weight_gradients_.clear();
  for (std::size_t rank = 0; rank < program().ranks.size(); ++rank) {
    for (const Action& action : program().ranks[rank]) {
      if (action.kind == ActionKind::kForward) runs_on_[place_of(action)] = static_cast<int>(rank);
    }
  }
  for (const Action& action : actions())
    num_weight_gradients_[action.stage] += finishes_weight_gradient(action) ? 1 : 0;
  if (versions_) version_of_ = versions_used(program(), mine_.begin()->first);
}

void Engine::find_versions() {
  if (!versions_) return;
  std::vector<int> uses;
  for (const Action& action : actions()) {
    if (action.kind != ActionKind::kForward && action.kind != ActionKind::kBackward) continue;
    const auto version = static_cast<std::size_t>(version_of_[static_cast<std::size_t>(action.microbatch)]);
    uses.resize(std::max(uses.size(), version + 1));
    ++uses[version];
  }
  versions_->set_uses(std::move(uses));
}

void Engine::begin(Feed feed) {
  for (auto& [number, stage] : mine_) stage.clear();
  for (Arrivals* arrivals : {&inputs_, &output_gradients_}) arrivals->clear();
  for (Departures* departures : {&outputs_, &input_gradients_}) departures->clear();
  losses_.clear();
  batch_.clear();
  done_.clear();
  done_before_.clear();
  peak_live_ = 0;
  feed_ = std::move(feed);
  num_fed_ = 0;
  next_receive_ = 0;
  executor_.restart();
  map_program();
  num_left_ = num_weight_gradients_;
  num_steps_left_ = mine_.size();
  if (versions_) {
    versions_->show_newest();
    versions_->restart();
    find_versions();
  }
  for (const at::Tensor& input : feed_.shapes) shapes_.of(input);
  if (!versions_) tied_.set_aside();
  transfers_.begin([this] { return next_incoming(); });
}

void Engine::run(std::uint64_t number) {
  executor_.run(number);
  transfers_.finish();
}

void Engine::run_to_update(std::uint64_t number) {
  executor_.run_to_update(number);
  if (executor_.at_end()) transfers_.finish();
}

void Engine::go_on_with(schedule::Program program) {
  executor_.replace(std::move(program), next_receive_);
  map_program();
  find_versions();
}

double Engine::take_loss() {
  double sum = 0;
  for (const auto& [weight, loss] : losses_) sum += weight * loss.item<double>();
  losses_.clear();
  return sum;
}

const MicroBatch& Engine::microbatch(int number) {
  for (; num_fed_ <= number; ++num_fed_) batch_[num_fed_] = feed_.next(num_fed_);
  return batch_.at(number);
}

std::optional<Transfers::Incoming> Engine::next_incoming() {
  while (next_receive_ < actions().size()) {
    const Action& action = actions()[next_receive_++];
    if (!schedule::is_receive(action.kind) || is_empty(action)) continue;
    const bool forward = action.kind == ActionKind::kReceiveForward;
    const int source = forward ? action.stage - 1 : action.stage + 1;
    // A gradient has the shape of the output that it belongs to.
    const EdgeSpec& edge = edge_behind(forward ? source : action.stage, action.microbatch);
    return Transfers::Incoming{.source = rank_of(source, action.microbatch),
                               .specs = forward ? edge.tensors : edge.gradients()};
  }
  return std::nullopt;
}

void Engine::zero_grad() {
  for (const auto& [number, stage] : mine_) {
    for (const model::Layer& layer : stage.layers()) {
      for (const auto& [name, parameter] : layer.parameters) parameter.mutable_grad().reset();
    }
  }
}

Replica Engine::replica() const {
  Replica replica;
  for (const auto& [number, stage] : mine_) add_tensors_of(stage, replica);
  if (versions_) replica.parameters = versions_->newest();
  return replica;
}

std::set<std::string> Engine::unsplit() const {
  std::set<std::string> all;
  for (const auto& [number, stage] : mine_) all.insert(stage.unsplit().begin(), stage.unsplit().end());
  return all;
}

double Engine::waited_s() const {
  double seconds = transfers_.waited_s();
  for (const auto& [number, replica] : replicas_) seconds += replica.statistics().waited_s;
  return seconds;
}

}  // namespace trireme::parallel
