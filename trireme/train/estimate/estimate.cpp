#include "trireme/train/estimate/estimate.h"

#include <algorithm>
#include <span>
#include <sstream>
#include <string>

#include "trireme/base/error.h"
#include "trireme/plan/chain_cuts.h"
#include "trireme/train/estimate/internal/exchange_times.h"
#include "trireme/train/estimate/internal/stage_layout.h"

namespace trireme::train {
namespace {

using schedule::ActionKind;

class StepCosts {
 public:
  StepCosts(const StageLayout& layout, const Measurements& measured, WeightsMemory weights)
      : layout_(layout), plan_(layout.plan()), measured_(measured), times_(measured), weights_(weights) {}

  schedule::Costs costs() const {
    schedule::Costs costs;
    for (int stage = 0; stage < layout_.num_stages(); ++stage) {
      costs.stages.push_back(of_stage(stage));
      costs.message_bytes = std::max(costs.message_bytes, layout_.bytes_sent(stage));
    }
    const CostLine& send = times_.over(plan_.world_size()).send;
    costs.hop = send.fixed_s;
    costs.bandwidth = send.unit_s > 0 ? 1 / send.unit_s : 0;
    costs.share_of_core = measured_.exchanges.share_of_core;
    return costs;
  }

 private:
  schedule::StageCost of_stage(int stage) const {
    const bool is_split = splits_backward(plan_);
    schedule::StageCost cost{.forward = 0, .backward_input = 0, .backward_weight = 0};
    const auto [begin, end] = layout_.layers_of(stage);
    for (std::size_t i = begin; i < end; ++i) {
      const LayerTime& time = layout_.model().layers[i].time;
      const bool is_recomputed = layout_.is_recomputed(i), with_stage = plan_.config().parallel.recompute;
      cost.forward += is_recomputed || with_stage ? time.bare_forward_s : time.forward_s;
      cost.backward_input += is_split ? time.backward_input_s : time.backward_s;
      cost.backward_weight += is_split ? time.backward_weight_s : 0;
      if (is_recomputed) cost.backward_input += std::max(0.0, time.recomputed_backward_s - time.backward_s);
      if (with_stage) cost.backward_input += time.forward_s;
    }
    const double bytes = bytes_of_stage(stage);
    cost.unshard = gathers_in_program() ? gather_s(bytes) : 0;
    cost.reduce = times_.reduce_s(sharing(), bytes);
    cost.update = update_s(stage, bytes);
    return cost;
  }

  double bytes_of_stage(int stage) const {
    double bytes = 0;
    for (const ParameterUse& each : layout_.parameters_of({stage})) bytes += static_cast<double>(each.bytes);
    return bytes;
  }

  WeightSharing sharing() const {
    return {.copies = plan_.weight_copies(),
            .shards = plan_.shard_ranks(),
            .tensor = plan_.tensor_ranks(),
            .zero = static_cast<int>(plan_.config().parallel.zero),
            .keeps_gradients = plan_.config().parallel.keep_gradients,
            .microbatches = plan_.num_microbatches(),
            .codec = plan_.config().parallel.compression};
  }
  double gather_s(double bytes) const { return times_.gather_s(sharing(), bytes, weights_); }
  /// ZeRO-3 gathers within the program. Other stages gather the weights once, after the update.
  bool gathers_in_program() const { return plan_.zero() == parallel::ZeroStage::kParameters; }

  /// Updates this rank's part of the stage, with the norm of all gradients if they are clipped. The stages of
  /// a rank share the fixed costs of an update.
  double update_s(int stage, double bytes) const {
    double numel = 0;
    for (const ParameterUse& each : layout_.parameters_of({stage})) numel += static_cast<double>(each.numel);
    if (plan_.is_sharded()) numel /= plan_.shard_ranks();
    const bool has_norm = plan_.config().train.clip_norm > 0;
    const int world = plan_.world_size();
    const double norm_s = has_norm ? times_.exchange_s(&ExchangeCosts::all_reduce, 0, world, world) : 0;
    const auto num_stages = static_cast<double>(layout_.stages_of(layout_.holder(stage)).size());
    const CostLine& update = cost_of_update(measured_, plan_.offloads_state());
    return (update.fixed_s + norm_s) / num_stages + update.unit_s * numel +
           (gathers_in_program() ? 0 : gather_s(bytes));
  }

  const StageLayout& layout_;
  const ParallelPlan& plan_;
  const Measurements& measured_;
  const ExchangeTimes times_;
  const WeightsMemory weights_;
};

/// Updates of a rank in the program: more than one with an asynchronous schedule.
std::size_t num_updates(const schedule::Program& program, int rank, std::size_t num_stages) {
  const auto& actions = program.ranks[static_cast<std::size_t>(rank)];
  const auto updates = static_cast<std::size_t>(
      std::ranges::count(actions, ActionKind::kStep, [](const schedule::Action& each) { return each.kind; }));
  return std::max<std::size_t>(updates / std::max<std::size_t>(num_stages, 1), 1);
}

/// Seconds of one step of `step_s`; means if the program has several steps.
SecondsOfRank seconds_of_rank(const StageLayout& layout, const schedule::Timeline& timeline, int rank,
                              double step_s, double overhead_s) {
  SecondsOfRank seconds;
  seconds.overhead = overhead_s;
  const auto at = static_cast<std::size_t>(rank);
  const std::vector<schedule::Action>& actions = layout.program().ranks[at];
  const auto steps = static_cast<double>(num_updates(layout.program(), rank, layout.stages_of(rank).size()));
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const double taken = (timeline.spans[at][i].end - timeline.spans[at][i].start) / steps;
    const ActionKind kind = actions[i].kind;
    if (kind == ActionKind::kForward) seconds.forward += taken;
    if (kind == ActionKind::kRecompute || schedule::makes_input_gradient(kind) ||
        kind == ActionKind::kBackwardWeight)
      seconds.backward += taken;
    if (kind == ActionKind::kStep) seconds.update += taken;
  }
  seconds.exchange = timeline.exchanged.at(at) / steps;
  seconds.idle = std::max(0.0, step_s - seconds.total());
  return seconds;
}

/// Overhead of a rank per step, which nothing overlaps: each stage processes each micro-batch. Layers that
/// are gathered one by one count as one stage.
double overhead_s(const StageLayout& layout, const Measurements& measured) {
  if (layout.plan().asynchronous()) return 0;
  const double stages =
      layout.plan().stages_are_layers() ? 1 : static_cast<double>(layout.stages_of(0).size());
  return measured.overhead.of(stages * layout.plan().num_microbatches());
}

/// Throws with the first key that differs.
void check_measured(const ParallelPlan& plan, const Measurements& measured) {
  std::istringstream wanted(model_key(plan)), found(measured.model);
  std::string of_plan, of_measured;
  while (std::getline(wanted, of_plan)) {
    std::getline(found, of_measured);
    require(of_plan == of_measured, "the costs were measured with ",
            of_measured.empty() ? "fewer keys" : of_measured, ", and the plan has ", of_plan,
            "; measure again with this configuration");
  }
  const std::int64_t samples = plan.samples_of_microbatch();
  require(samples >= measured.least_samples, "a micro-batch has ", samples,
          samples == 1 ? " sample" : " samples", ", and the model was measured with ", measured.least_samples,
          " or more: it rejects fewer; take fewer micro-batches, or a larger train.global_batch");
  require(plan.world_size() == 1 || measured.exchanges.ranks > 1,
          "the costs were measured by 1 rank, which "
          "exchanges nothing, and the plan has ",
          plan.world_size(), "; measure again with 2 ranks or more");
}

/// Mean for the first rank in the middle of the run, where the pipeline is full.
double seconds_between_updates(const schedule::Program& program, const schedule::Timeline& timeline) {
  std::vector<double> ends;
  for (std::size_t i = 0; i < program.ranks.front().size(); ++i) {
    if (program.ranks.front()[i].kind == ActionKind::kStep) ends.push_back(timeline.spans.front()[i].end);
  }
  const std::size_t first = ends.size() / 3, last = 2 * ends.size() / 3;
  return first == last ? timeline.makespan : (ends[last] - ends[first]) / static_cast<double>(last - first);
}

}  // namespace

ParallelPlan cut_by_time(const ParallelPlan& plan, const ModelUse& model) {
  const bool is_cut = plan.is_cut() || plan.stages_are_layers();
  if (!is_cut || !plan.cuts().empty()) return plan;
  // Costs of parts of layers or sequences were measured with that many ranks, so the model supports them.
  const parallel::TensorLimits as_measured{.sequences = true, .tokens = 2L * plan.context_ranks()};
  ModelShape shape{.name = plan.config().model.name, .parameters = {}, .tensor = as_measured};
  std::vector<plan::Layer> layers;
  for (const LayerUse& layer : std::span(model.layers).first(model.layers.size() - 1)) {
    shape.parameters.push_back(static_cast<double>(numel_of(layer)));
    layers.push_back({.name = layer.name,
                      .forward_s = layer.time.forward_s,
                      .backward_s = layer.time.backward_s,
                      .output_bytes = layer.memory.kept.output_bytes});
  }
  ParallelPlan fitted = plan.for_model(shape);
  if (!fitted.is_cut() || !fitted.cuts().empty()) return fitted;
  const auto num_stages = static_cast<std::size_t>(fitted.program().num_stages);
  const std::vector<std::size_t> cuts =
      plan::cut_chain(layers, {.num_stages = num_stages, .replicas = fitted.replicas_of_stages()});
  return fitted.with_cuts({cuts.begin(), cuts.end()});
}

WeightsMemory weights_memory(const ParallelPlan& plan, const Measurements& measured) {
  const int span = plan.shard_ranks() * plan.tensor_ranks();
  const bool spans_hosts = measured.ranks_of_host > 0 && !is_within_host(measured, span);
  return measured.links.are_weights_own() || spans_hosts ? WeightsMemory::kOwn : weights_memory(plan);
}

Estimate estimate(const ParallelPlan& plan, const Measurements& measured, WeightsMemory weights) {
  check_forecast(plan);
  check_measured(plan, measured);
  const ModelUse model = model_at(measured, plan.samples_of_microbatch());
  Estimate estimate{.plan = cut_by_time(plan, model), .costs = {}, .timeline = {}, .ranks = {}};
  const StageLayout layout(estimate.plan, model);
  estimate.costs = StepCosts(layout, measured, weights).costs();
  estimate.timeline = schedule::simulate(layout.program(), estimate.costs);
  estimate.step_s = plan.asynchronous() ? seconds_between_updates(layout.program(), estimate.timeline)
                                        : estimate.timeline.makespan;
  const double overhead = overhead_s(layout, measured);
  estimate.step_s += overhead;
  const std::vector<ForecastOfRank> memory = forecast_memory(estimate.plan, model, weights);
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    estimate.ranks.push_back(
        {.seconds = seconds_of_rank(layout, estimate.timeline, rank, estimate.step_s, overhead),
         .memory = memory[static_cast<std::size_t>(rank)]});
  }
  return estimate;
}

}  // namespace trireme::train
