#include "trireme/train/estimate/memory_forecast.h"

#include <algorithm>
#include <set>

#include "trireme/base/error.h"
#include "trireme/parallel/zero/gradient_buckets.h"
#include "trireme/schedule/simulate.h"
#include "trireme/train/estimate/internal/stage_layout.h"

namespace trireme::train {
namespace {

/// Where gradients are during a step.
enum class Gradients {
  kMade,     ///< from the first backward of a stage until the update
  kBuckets,  ///< of all parameters, always allocated
  kParts,    ///< a rank's shard from the first backward on, and a few buckets for reductions
};

/// For a rank whose buckets are not limited by its parameters (parallel::bucket_limits()).
Gradients gradients_of(const ParallelPlan& plan) {
  if (plan.weight_copies() == 1) return plan.exact() ? Gradients::kBuckets : Gradients::kMade;
  const bool keeps = plan.config().parallel.keep_gradients && plan.num_microbatches() > 1;
  const bool are_shared = plan.is_sharded() && plan.zero() >= parallel::ZeroStage::kGradients;
  return are_shared && !keeps && !plan.exact() ? Gradients::kParts : Gradients::kBuckets;
}

/// Whether the ranks of one host share memory.
bool has_shared_memory(const ParallelPlan& plan) {
  const std::string& backend = plan.config().comm.backend;
  return plan.device() == c10::kCPU && (backend == "auto" || backend == "shm" || backend == "threads");
}

/// Follows a rank's actions, and tracks the bytes of micro-batches and gradients.
class RankWalk {
 public:
  /// `state` and `buckets` bytes of gradients are allocated all the time.
  RankWalk(const MemoryUse& state, Gradients kind, double buckets)
      : state_(state), kind_(kind), gradients_(buckets) {}

  /// Memory of a tensor from another rank; below 0: a pass has consumed it.
  void receive(double bytes) { held_ += bytes; }

  void go(const schedule::Action& action, const plan::StageMemory& stage) {
    using Kind = schedule::ActionKind;
    if (action.kind == Kind::kForward) {
      note(held_ + stage.forward_bytes);
      held_ += stage.kept_bytes;
    } else if (action.kind == Kind::kBackward) {
      held_ -= stage.kept_bytes;
      note(held_ + stage.backward_bytes);
      if (begins_gradients(action.stage))
        note(held_ + stage.first_backward_bytes - stage.first_gradient_bytes, stage.first_gradient_bytes);
      end_pass(action.stage, stage);
    } else if (action.kind == Kind::kBackwardInput) {
      held_ -= stage.kept_bytes;
      note(held_ + stage.input_backward_bytes);
      held_ += stage.for_weights_bytes;
    } else if (action.kind == Kind::kBackwardWeight) {
      // The first gradients of a stage that has no buckets are not added to anything.
      const bool begins = begins_gradients(action.stage), are_sums = kind_ == Gradients::kMade && begins;
      note(held_ + (are_sums ? 0 : stage.largest_gradient_bytes), begins ? stage.gradient_bytes : 0);
      held_ -= stage.for_weights_bytes;
      end_pass(action.stage, stage);
    } else if (action.kind == Kind::kStep) {
      note(held_);
      if (with_gradients_.erase(action.stage) > 0) gradients_ -= stage.gradient_bytes;
    }
  }

  const MemoryUse& most() const { return most_; }

 private:
  bool begins_gradients(int stage) const {
    return kind_ != Gradients::kBuckets && !with_gradients_.contains(stage);
  }
  void end_pass(int stage, const plan::StageMemory& memory) {
    if (!begins_gradients(stage)) return;
    with_gradients_.insert(stage);
    gradients_ += memory.gradient_bytes;
  }
  void note(double activations, double new_gradients = 0) {
    MemoryUse now = state_;
    now[MemoryKind::kActivations] += static_cast<std::int64_t>(activations);
    now[MemoryKind::kGradients] += static_cast<std::int64_t>(gradients_ + new_gradients);
    if (now.total() > most_.total()) most_ = now;
  }

  const MemoryUse state_;
  const Gradients kind_;
  double gradients_, held_ = 0;
  std::set<int> with_gradients_;
  MemoryUse most_;
};

class Forecast {
 public:
  Forecast(const ParallelPlan& plan, const ModelUse& model, WeightsMemory weights)
      : plan_(plan), model_(model), layers_(model.layers), layout_(plan, model), weights_(weights) {
    for (int rank = 0; rank < layout_.num_ranks(); ++rank) gradients_.push_back(gradients_of_rank(rank));
    for (int stage = 0; stage < layout_.num_stages(); ++stage) stages_.push_back(memory_of(stage));
    versions_ = schedule::simulate(layout_.program()).peak_weight_versions;
  }

  ForecastOfRank of_rank(int rank) const {
    const std::vector<int> stages = layout_.stages_of(rank);
    const Gradients kind = gradients_[static_cast<std::size_t>(rank)];
    const MemoryUse state = state_of(rank, stages);
    RankWalk walk(state, kind, kind == Gradients::kParts ? bytes_of_buckets(stages) : 0);
    for (const schedule::Action& action : layout_.program().ranks[static_cast<std::size_t>(rank)]) {
      walk.receive(bytes_of_receive(action));
      walk.go(action, stages_[static_cast<std::size_t>(action.stage)]);
    }
    const bool has_replicas = plan_.weight_copies() > 1 && !plan_.is_sharded();
    return {.at_peak = walk.most(),
            .shared_bytes = shared_bytes(rank, stages),
            .first_step_bytes = has_replicas ? state.total() + state[MemoryKind::kGradients] : 0,
            .stages = stages};
  }

 private:
  Gradients gradients_of_rank(int rank) const {
    const Gradients kind = gradients_of(plan_);
    if (kind != Gradients::kParts) return kind;
    std::vector<std::int64_t> parameters;
    for (const ParameterBytes& each : parameters_of(layout_.stages_of(rank)))
      parameters.push_back(each.exact);
    const parallel::BucketLimits limits = parallel::bucket_limits(parameters, plan_.shard_ranks());
    return limits.at_a_time == parallel::BucketLimits::kAll ? Gradients::kBuckets : kind;
  }

  plan::StageMemory memory_of(int stage) const {
    const auto [begin, end] = layout_.layers_of(stage);
    const Gradients kind = gradients_[static_cast<std::size_t>(layout_.holder(stage))];
    std::vector<plan::LayerMemory> layers;
    plan::StageForm form;
    form.recomputed.stage = plan_.config().parallel.recompute;
    // Sharded gradients are reduced where they are made. Buckets of replicas, and sums over micro-batches,
    // get copies.
    const bool is_added = kind == Gradients::kMade && plan_.num_microbatches() > 1;
    if (is_added || (kind == Gradients::kBuckets && !plan_.is_sharded()))
      form.gradients = plan::GradientsOfStage::kCopied;
    for (std::size_t i = begin; i < end; ++i) {
      layers.push_back(layers_[i].memory);
      // Each rank keeps its shard of the sums.
      if (kind == Gradients::kParts) layers.back().gradient_bytes /= plan_.shard_ranks();
      form.recomputed.layers.push_back(layout_.is_recomputed(i));
    }
    if (stage > 0) form.edges.input_bytes = layers_[begin - 1].memory.kept.output_bytes;
    form.edges.output_bytes = layout_.bytes_sent(stage);
    return plan::memory_of_stage(layers, form);
  }

  ParameterBytes bytes_of(const ParameterUse& parameter) const {
    const bool rounds = plan_.is_sharded() && plan_.config().parallel.working_copy &&
                        plan_.precision().autocast_to != at::kFloat;
    return {.exact = parameter.bytes,
            .working = rounds && parameter.is_rounded ? parameter.bytes / 2 : 0,
            .is_kept = parameter.numel < plan_.config().parallel.persistent_below};
  }

  std::vector<ParameterBytes> parameters_of(const std::vector<int>& stages) const {
    std::vector<ParameterBytes> all;
    for (const ParameterUse& each : layout_.parameters_of(stages)) all.push_back(bytes_of(each));
    return all;
  }

  /// Memory that is allocated all the time.
  MemoryUse state_of(int rank, const std::vector<int>& stages) const {
    const std::vector<ParameterBytes> parameters = parameters_of(stages);
    MemoryUse state = state_by_formula(plan_, parameters, weights_);
    const int versions = versions_[static_cast<std::size_t>(rank)];
    std::int64_t exact = 0;
    for (const ParameterBytes& each : parameters) exact += each.exact;
    const bool is_whole = gradients_[static_cast<std::size_t>(rank)] == Gradients::kBuckets;
    state[MemoryKind::kGradients] = is_whole ? exact : 0;
    if (versions > 1) state[MemoryKind::kWeights] += (versions - 1) * exact;
    const bool gathers = plan_.is_sharded() && plan_.zero() == parallel::ZeroStage::kParameters &&
                         weights_ == WeightsMemory::kOwn;
    if (gathers) state[MemoryKind::kWeights] += bytes_of_gathered(stages);
    state[MemoryKind::kActivations] = bytes_of_batches(stages) + bytes_of_saves(exact, state);
    return state;
  }

  /// Copies of the rank's part of a checkpoint, from the first save on (checkpoint/background_saver.h).
  /// `parameters` is in bytes; `state` is the rank's.
  std::int64_t bytes_of_saves(std::int64_t parameters, const MemoryUse& state) const {
    const CheckpointOptions& options = plan_.config().checkpoint;
    const bool saves = options.every_steps > 0 || options.interval != "steps" || options.best != "none";
    if (!options.asynchronous || !saves) return 0;
    std::int64_t saved = plan_.offloads_parameters() ? 0 : parameters;
    if (!plan_.offloads_state())
      saved += state[MemoryKind::kOptimizer] * (plan_.is_sharded() ? plan_.shard_ranks() : 1);
    else if (plan_.config().train.ema_decay > 0)
      saved += parameters;
    return saved / plan_.weight_copies();
  }

  /// A receive takes memory from its action until the pass that consumes the tensor. The pass counts it from
  /// then on.
  double bytes_of_receive(const schedule::Action& action) const {
    const auto between = [&](int stage) { return layout_.bytes_sent(stage); };  // to the next stage
    if (action.kind == schedule::ActionKind::kReceiveForward) return between(action.stage - 1);
    if (action.kind == schedule::ActionKind::kForward) return -between(action.stage - 1);
    if (action.kind == schedule::ActionKind::kReceiveBackward) return between(action.stage);
    return schedule::makes_input_gradient(action.kind) ? -between(action.stage) : 0.0;
  }

  /// Buckets of gradients are in shared memory, and so are weights of which each rank updates a part.
  std::int64_t shared_bytes(int rank, const std::vector<int>& stages) const {
    if (!has_shared_memory(plan_) || plan_.weight_copies() == 1) return 0;
    const std::vector<ParameterBytes> parameters = parameters_of(stages);
    std::int64_t exact = 0, computed_with = 0;
    for (const ParameterBytes& each : parameters) {
      exact += each.exact;
      computed_with += each.working > 0 ? each.working : each.exact;
    }
    const bool are_common = plan_.is_sharded() && weights_ == WeightsMemory::kCommon;
    const std::int64_t weights = are_common ? computed_with / plan_.shard_ranks() : 0;
    const bool are_parts = gradients_[static_cast<std::size_t>(rank)] == Gradients::kParts;
    return weights + (are_parts ? static_cast<std::int64_t>(bytes_of_buckets(stages)) : exact);
  }

  /// The prefetched batches and the current one.
  std::int64_t bytes_of_batches(const std::vector<int>& stages) const {
    const auto has = [&](int stage) { return std::ranges::find(stages, stage) != stages.end(); };
    const double bytes =
        (has(0) ? model_.input_bytes : 0) + (has(layout_.num_stages() - 1) ? model_.target_bytes : 0);
    return static_cast<std::int64_t>(bytes * plan_.num_microbatches() *
                                     static_cast<double>(plan_.config().data.prefetch + 1));
  }

  /// Parameters in the precision of the computation.
  std::int64_t bytes_of_stage(int stage) const {
    std::int64_t bytes = 0;
    for (const ParameterBytes& each : parameters_of({stage}))
      bytes += each.working > 0 ? each.working : each.exact;
    return bytes;
  }

  std::int64_t bytes_of_gathered(const std::vector<int>& stages) const {
    const std::int64_t limit = plan_.config().parallel.gathered_layers;
    const std::size_t at_once = limit == 0 ? stages.size() : static_cast<std::size_t>(limit);
    std::int64_t most = 0;
    for (std::size_t first = 0; first < stages.size(); ++first) {
      std::int64_t bytes = 0;
      for (std::size_t i = first; i < std::min(stages.size(), first + at_once); ++i)
        bytes += bytes_of_stage(stages[i]);
      most = std::max(most, bytes);
    }
    return most;
  }

  double bytes_of_buckets(const std::vector<int>& stages) const {
    std::vector<std::vector<std::int64_t>> parameters;
    for (const int stage : stages) {
      parameters.emplace_back();
      for (const ParameterBytes& each : parameters_of({stage})) parameters.back().push_back(each.exact);
    }
    return static_cast<double>(
        parallel::bytes_of_buckets(parameters, plan_.shard_ranks(), plan_.pipeline_options().data_parallel));
  }

  const ParallelPlan& plan_;
  const ModelUse& model_;
  const std::vector<LayerUse>& layers_;
  const StageLayout layout_;
  const WeightsMemory weights_;
  std::vector<Gradients> gradients_;  ///< by rank
  std::vector<plan::StageMemory> stages_;
  std::vector<int> versions_;  ///< by rank
};

}  // namespace

WeightsMemory weights_memory(const ParallelPlan& plan) {
  return has_shared_memory(plan) && !plan.offloads_parameters() ? WeightsMemory::kCommon
                                                                : WeightsMemory::kOwn;
}

bool splits_backward(const ParallelPlan& plan) {
  return std::ranges::any_of(plan.program().ranks, [](const std::vector<schedule::Action>& actions) {
    return std::ranges::any_of(actions, [](const schedule::Action& action) {
      return action.kind == schedule::ActionKind::kBackwardInput;
    });
  });
}

void check_forecast(const ParallelPlan& plan) {
  require(
      !plan.offloads_activations(), "offload.activations = \"", plan.config().offload.activations,
      "\": what of activations is in memory at a time depends on how fast it comes and goes; a run reports "
      "its memory at its end");
  require(!plan.uses_parameter_server() && !plan.uses_local_sgd(),
          "the memory of a rank is estimated for ranks that train together; with "
          "parallel.mode = \"ps\" or parallel.local_steps a run reports it at its end");
}

std::vector<ForecastOfRank> forecast_memory(const ParallelPlan& plan, const ModelUse& model,
                                            WeightsMemory weights) {
  check_forecast(plan);
  const Forecast forecast(plan, model, weights);
  std::vector<ForecastOfRank> ranks;
  for (int rank = 0; rank < plan.pipeline_ranks(); ++rank) ranks.push_back(forecast.of_rank(rank));
  return ranks;
}

const ForecastOfRank& MemoryForecast::largest() const {
  const auto less = [](const ForecastOfRank& a, const ForecastOfRank& b) {
    return a.at_peak.total() < b.at_peak.total();
  };
  return *std::max_element(ranks.begin(), ranks.end(), less);
}

std::optional<MemoryForecast> forecast_from(const MemoryForecast& measured, const ParallelPlan& plan,
                                            WeightsMemory weights) {
  check_forecast(plan);
  const ParallelPlan& before = measured.plan;
  const bool are_alike = plan.samples_of_microbatch() == before.samples_of_microbatch() &&
                         plan.tensor_ranks() == before.tensor_ranks() &&
                         plan.context_ranks() == before.context_ranks() &&
                         plan.config().parallel.sequence == before.config().parallel.sequence &&
                         plan.precision().autocast_to == before.precision().autocast_to &&
                         plan.convolutions() == before.convolutions() && plan.device() == before.device() &&
                         plan.config().train.activation_budget == before.config().train.activation_budget;
  const bool is_cut = plan.is_cut() || plan.stages_are_layers();
  const bool has_parts = std::ranges::any_of(
      measured.model.layers, [](const LayerUse& layer) { return layer.memory.for_weights_bytes > 0; });
  // Parallel forms and split backwards have to be measured.
  if (!are_alike || (is_cut && plan.is_model_parallel()) || (splits_backward(plan) && !has_parts))
    return std::nullopt;
  ModelShape shape{.name = plan.config().model.name, .parameters = {}};
  for (std::size_t i = 0; i + 1 < measured.model.layers.size(); ++i)
    shape.parameters.push_back(static_cast<double>(numel_of(measured.model.layers[i])));
  MemoryForecast forecast{
      .plan = is_cut ? plan.for_model(shape) : plan, .model = measured.model, .ranks = {}};
  if (forecast.plan.is_cut() && forecast.plan.cuts().empty()) {  // by time
    if (before.cuts().empty() || before.program().num_stages != forecast.plan.program().num_stages)
      return std::nullopt;
    forecast.plan = forecast.plan.with_cuts(before.cuts());
  }
  forecast.ranks = forecast_memory(forecast.plan, forecast.model, weights);
  return forecast;
}

}  // namespace trireme::train
