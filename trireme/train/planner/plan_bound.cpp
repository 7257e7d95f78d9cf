#include "trireme/train/planner/internal/plan_bound.h"

#include <algorithm>
#include <limits>
#include <set>
#include <span>

#include "trireme/base/error.h"
#include "trireme/plan/chain_cuts.h"
#include "trireme/schedule/schedule_table.h"
#include "trireme/train/planner/internal/plan_work.h"

namespace trireme::train {
namespace {

/// Sums over one or more layers.
struct LayerSum {
  double forward_s = 0, backward_s = 0;
  double input_s = 0;          ///< of the backward, until the gradient of the input exists
  double kept_bytes = 0;       ///< of a micro-batch, nothing recomputed
  double min_bytes = 0;        ///< the same, all layers recomputed
  double parameter_bytes = 0;  ///< a name in several layers counts in each

  friend LayerSum operator-(const LayerSum& a, const LayerSum& b) {
    return {.forward_s = a.forward_s - b.forward_s,
            .backward_s = a.backward_s - b.backward_s,
            .input_s = a.input_s - b.input_s,
            .kept_bytes = a.kept_bytes - b.kept_bytes,
            .min_bytes = a.min_bytes - b.min_bytes,
            .parameter_bytes = a.parameter_bytes - b.parameter_bytes};
  }
};

constexpr double kNone = std::numeric_limits<double>::infinity();

/// Work of a rank per micro-batch.
struct RankWork {
  double pass_s = 0;           ///< forward and backward
  double kept_bytes = 0;       ///< of the stage that keeps least, without recomputation
  double min_bytes = 0;        ///< of the stage that keeps least, with all layers recomputed
  double parameter_bytes = 0;  ///< of all stages, each name once
  double smallest_parameter_bytes = 0;
};

/// Largest number of micro-batches, over a rank's stages, between forward and input gradient.
int in_flight_of(const std::vector<schedule::Action>& actions) {
  int now = 0, most = 0;
  for (const schedule::Action& action : actions) {
    if (action.kind == schedule::ActionKind::kForward) most = std::max(most, ++now);
    if (schedule::makes_input_gradient(action.kind)) --now;
  }
  return most;
}

std::shared_ptr<ScheduleFacts> facts_of_schedule(MadeSchedules& schedules, const std::string& name,
                                                 const ScheduleSize& size) {
  auto facts = std::make_shared<ScheduleFacts>();
  schedule::Program program;
  try {
    program = schedules.make(name, size);
  } catch (const InvalidArgument&) {
    return nullptr;
  }
  facts->splits_backward = false;
  for (const std::vector<schedule::Action>& actions : program.ranks) {
    std::set<int> stages;
    for (const schedule::Action& action : actions) {
      if (!schedule::is_compute(action.kind)) continue;
      stages.insert(action.stage);
      if (action.kind == schedule::ActionKind::kBackwardInput) facts->splits_backward = true;
    }
    facts->stages.emplace_back(stages.begin(), stages.end());
    facts->in_flight.push_back(in_flight_of(actions));
  }
  return facts;
}

double moments_of_optimizer(const RunConfig& config) {
  return config.optimizer.name == "adamw" || config.optimizer.name == "adam" ? 2 : 0;
}

}  // namespace

struct PlanBounds::Sums {
  std::vector<LayerSum> up_to;  ///< [i]: of the first i layers; the last entry includes the loss
  std::vector<plan::Layer> layers;
  double whole_parameter_bytes = 0;  ///< each name once
  double output_bytes = 0;           ///< the least of any layer but the last
  double freed_per_s = 0;            ///< most bytes of a micro-batch that a second of recomputation frees
  std::map<std::size_t, std::vector<int>> cuts;

  struct Shared {
    std::size_t layer, name;  ///< name: the first layer that has it
    double bytes;
  };
  std::vector<Shared> shared;  ///< parameters whose name an earlier layer also has, by layer

  LayerSum between(std::size_t begin, std::size_t end) const { return up_to[end] - up_to[begin]; }
  /// Of ranges of layers; counts each name once.
  double parameter_bytes_of(const std::vector<std::pair<std::size_t, std::size_t>>& ranges) const {
    const auto has = [&](std::size_t layer) {
      return std::ranges::any_of(
          ranges, [&](const auto& range) { return range.first <= layer && layer < range.second; });
    };
    double bytes = 0;
    for (const auto& [begin, end] : ranges) bytes += between(begin, end).parameter_bytes;
    for (const Shared& each : shared) {
      if (has(each.layer) && has(each.name)) bytes -= each.bytes;
    }
    return bytes;
  }
};

PlanBounds::PlanBounds(const RunConfig& config, int world_size, std::int64_t limit_bytes,
                       MadeSchedules& schedules)
    : config_(config),
      world_size_(world_size),
      limit_bytes_(static_cast<double>(limit_bytes)),
      schedules_(schedules) {}

PlanBounds::Sums& PlanBounds::sums_of(const Measurements& costs, std::int64_t samples) {
  std::shared_ptr<Sums>& sums = sums_[{&costs, samples}];
  if (sums) return *sums;
  sums = std::make_shared<Sums>();
  const ModelUse model = model_at(costs, samples);
  std::map<std::string, std::size_t> first_with;  // by name
  LayerSum all;
  double output_bytes = 0;  // of the previous layer
  sums->up_to.push_back(all);
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const LayerUse& layer = model.layers[i];
    const LayerTime& time = layer.time;
    const double forward_s = std::min(time.forward_s, time.bare_forward_s);
    const double freed = layer.memory.kept.inner_bytes;
    all.forward_s += forward_s;
    all.backward_s += std::min(time.backward_s, time.backward_input_s + time.backward_weight_s);
    all.input_s += std::min(time.backward_s, time.backward_input_s);
    all.kept_bytes += layer.memory.kept.inner_bytes + (layer.memory.kept.saves_input ? output_bytes : 0);
    all.min_bytes +=
        i == 0 || i + 1 == model.layers.size() || !layer.memory.kept.saves_input ? 0 : output_bytes;
    for (const ParameterUse& each : layer.parameters) {
      all.parameter_bytes += static_cast<double>(each.bytes);
      const auto [first, is_new] = first_with.try_emplace(each.name, i);
      if (!is_new) sums->shared.push_back({i, first->second, static_cast<double>(each.bytes)});
      sums->whole_parameter_bytes += is_new ? static_cast<double>(each.bytes) : 0;
    }
    const double added_s = std::max(0.0, time.recomputed_backward_s - time.backward_s);
    if (added_s > 0) sums->freed_per_s = std::max(sums->freed_per_s, freed / added_s);
    if (i + 1 < model.layers.size()) {
      sums->layers.push_back({.name = layer.name,
                              .forward_s = time.forward_s,
                              .backward_s = time.backward_s,
                              .output_bytes = layer.memory.kept.output_bytes});
      sums->up_to.push_back(all);
    }
    output_bytes = layer.memory.kept.output_bytes;
  }
  sums->up_to.back() = all;
  return *sums;
}

const std::vector<int>& PlanBounds::cuts_of(Sums& sums, std::size_t num_stages) {
  std::vector<int>& cuts = sums.cuts[num_stages];
  if (cuts.empty() && num_stages > 1) {
    const std::vector<std::size_t> found = plan::cut_chain(sums.layers, {.num_stages = num_stages});
    cuts.assign(found.begin(), found.end());
  }
  return cuts;
}

/// Capped at twice the ranks: additional micro-batches never reduce the number in flight.
PlanBounds::FactsKey PlanBounds::facts_key(const PlanChoice& choice) {
  return {choice.schedule, choice.pipeline, choice.chunks,
          std::min(choice.microbatches, 2 * choice.pipeline)};
}

ScheduleSize PlanBounds::size_of_facts(const PlanChoice& choice) {
  return {.ranks = static_cast<int>(choice.pipeline),
          .chunks = static_cast<int>(choice.chunks),
          .microbatches = static_cast<int>(std::get<3>(facts_key(choice)))};
}

const ScheduleFacts* PlanBounds::facts_of(const PlanChoice& choice) {
  static const ScheduleFacts kAlone{.splits_backward = false, .stages = {{0}}, .in_flight = {1}};
  if (choice.pipeline == 1) return &kAlone;
  const FactsKey key = facts_key(choice);
  const auto found = facts_.find(key);
  if (found != facts_.end()) return found->second.get();
  std::shared_ptr<ScheduleFacts> facts;
  const auto row = std::ranges::find(schedule::schedules(), choice.schedule, &schedule::ScheduleRow::name);
  if (row != schedule::schedules().end())
    facts = facts_of_schedule(schedules_, choice.schedule, size_of_facts(choice));
  return (facts_[key] = std::move(facts)).get();
}

std::int64_t PlanBounds::work_of_tight(const PlanChoice& choice, const Measurements& costs) const {
  if (choice.pipeline == 1 || facts_.contains(facts_key(choice))) return kWorkOfTightBound;
  const bool searches = schedules_.has_to_search(choice.schedule, size_of_facts(choice));
  return kWorkOfTightBound + (searches ? kWorkOfScheduleSearch : 0) +
         work_of_facts(with_choice(config_, choice), std::ssize(costs.costs.front().layers));
}

WeightSharing PlanBounds::sharing_of(const PlanChoice& choice) const {
  const auto copies = static_cast<int>(choice.replicas(world_size_) * choice.context);
  return {.copies = copies,
          .shards = choice.shard_ranks == 0 ? copies : static_cast<int>(choice.shard_ranks),
          .tensor = static_cast<int>(choice.tensor),
          .zero = static_cast<int>(choice.zero),
          .keeps_gradients = choice.keep_gradients,
          .microbatches = static_cast<int>(choice.num_microbatches()),
          .codec = config_.parallel.compression};
}

/// Weights may be shared in the memory of a host, and state may be offloaded. There is no bound for either.
/// Described links have no time of files, so that no plan there chooses to offload.
bool PlanBounds::bounds_memory(const Measurements& costs) const {
  return limit_bytes_ > 0 && costs.links.are_weights_own() && config_.offload.optimizer == "none" &&
         config_.offload.parameters == "none";
}

/// Weights, moments, and gradients if they are allocated for the whole step.
double PlanBounds::state_bytes(const WeightSharing& sharing, double parameter_bytes,
                               bool counts_gradients) const {
  const double share = sharing.is_sharded() ? 1.0 / sharing.shards : 1;
  const bool may_round = sharing.is_sharded() && config_.train.precision != "fp32";
  const double weights = (sharing.zero == 3 ? share : 1) * (may_round ? 0.5 : 1);
  const bool has_parts = sharing.is_sharded() && sharing.zero >= 2;
  const double gradients = has_parts ? (sharing.keeps_gradients ? 1 : share) : 1;
  return parameter_bytes *
         (weights + (counts_gradients ? gradients : 0) + moments_of_optimizer(config_) * share);
}

/// Weights of the stages that ZeRO-3 has gathered at a time, in a pipeline.
double PlanBounds::gathered_bytes(const PlanChoice& choice, double stage_bytes,
                                  std::size_t num_stages) const {
  if (choice.pipeline == 1 || choice.zero < 3 || !sharing_of(choice).is_sharded()) return 0;
  const auto at_a_time = static_cast<std::size_t>(config_.parallel.gathered_layers);
  const std::size_t gathered = at_a_time == 0 ? num_stages : std::min(at_a_time, num_stages);
  return stage_bytes * static_cast<double>(gathered) * (config_.train.precision == "fp32" ? 1 : 0.5);
}

/// Seconds after the last backward of a stage: its reduction and its update.
double PlanBounds::end_s(const PlanChoice& choice, const Measurements& costs, double parameter_bytes) const {
  if (!costs.links.are_weights_own()) return 0;
  const WeightSharing sharing = sharing_of(choice);
  const ExchangeTimes times(costs);
  const double share = sharing.is_sharded() ? 1.0 / sharing.shards : 1;
  // Reductions of single layers overlap with the backward of other layers.
  const bool are_layers =
      choice.pipeline == 1 && (sharing.zero == 3 || config_.parallel.chunks > 1 || config_.run.exact);
  const double gather_s =
      sharing.zero == 3 ? 0 : times.gather_s(sharing, parameter_bytes, WeightsMemory::kOwn);
  return costs.update.unit_s * parameter_bytes / 4 * share +
         (are_layers ? 0 : gather_s + times.reduce_s(sharing, parameter_bytes));
}

/// Seconds of a step that no action of its program covers, for the stages of the first rank.
double PlanBounds::overhead_s(const PlanChoice& choice, const Measurements& costs, std::size_t stages) {
  return costs.overhead.of(static_cast<double>(stages) * static_cast<double>(choice.num_microbatches()));
}

/// ZeRO-3 gathers the layers for each pass and reduces them, one after the other.
double PlanBounds::exchanges_s(const PlanChoice& choice, const Measurements& costs) {
  const WeightSharing sharing = sharing_of(choice);
  const std::int64_t at_a_time = config_.parallel.gathered_layers;
  if (sharing.zero < 3 || !costs.links.are_weights_own()) return 0;
  const Sums& sums = sums_of(costs, choice.samples(config_.train.global_batch, world_size_));
  const ExchangeTimes times(costs);
  double gathers_s = 0, largest_s = 0, reductions_s = 0;
  for (std::size_t i = 0; i < sums.layers.size(); ++i) {
    const double bytes = sums.between(i, i + 1).parameter_bytes;
    const double gather_s = times.gather_s(sharing, bytes, WeightsMemory::kOwn);
    gathers_s += gather_s;
    largest_s = std::max(largest_s, gather_s);
    reductions_s += times.reduce_s(sharing, bytes);
  }
  // A pass starts with the layers that the previous pass left gathered. The first gather precedes the step.
  const double each_s = std::max(0.0, gathers_s - static_cast<double>(at_a_time + 1) * largest_s);
  const double passes = at_a_time == 0 ? 0 : 2 * static_cast<double>(choice.num_microbatches());
  return passes * each_s + reductions_s;
}

PlanBound PlanBounds::loose(const PlanChoice& choice, const Measurements& costs) {
  PlanBound bound = loose_of_program(choice, costs);
  bound.step_s += overhead_s(choice, costs, 1);
  return bound;
}

PlanBound PlanBounds::tight(const PlanChoice& choice, const Measurements& costs) {
  PlanBound bound = tight_of_program(choice, costs);
  const ScheduleFacts* facts = facts_of(choice);
  bound.step_s += overhead_s(choice, costs, facts == nullptr ? 1 : facts->stages.front().size());
  return bound;
}

PlanBound PlanBounds::loose_of_program(const PlanChoice& choice, const Measurements& costs) {
  const Sums& sums = sums_of(costs, choice.samples(config_.train.global_batch, world_size_));
  const LayerSum& all = sums.up_to.back();
  const auto ranks = static_cast<double>(choice.pipeline);
  const WeightSharing sharing = sharing_of(choice);
  PlanBound bound;
  bound.step_s = (all.forward_s + all.backward_s) * static_cast<double>(choice.num_microbatches()) / ranks;
  if (choice.pipeline == 1) bound.step_s += end_s(choice, costs, sums.whole_parameter_bytes);
  if (bounds_memory(costs))
    bound.memory_bytes = state_bytes(sharing, sums.whole_parameter_bytes / ranks, true);
  return bound;
}

PlanBound PlanBounds::tight_of_program(const PlanChoice& choice, const Measurements& costs) {
  PlanBound bound = loose_of_program(choice, costs);
  const ParallelOptions& parallel = config_.parallel;
  const bool cuts_by_time =
      (parallel.partition == "auto" || parallel.partition == "time") && parallel.cuts.empty();
  if (choice.pipeline > 1 && !cuts_by_time) return bound;
  const ScheduleFacts* facts = facts_of(choice);
  if (facts == nullptr) {  // an impossible schedule comes last; one from a file has no bound
    const bool is_known = std::ranges::find(schedule::schedules(), choice.schedule,
                                            &schedule::ScheduleRow::name) != schedule::schedules().end();
    if (is_known) bound.step_s = kNone;
    return bound;
  }
  Sums& sums = sums_of(costs, choice.samples(config_.train.global_batch, world_size_));
  std::size_t num_stages = 0;
  for (const std::vector<int>& stages : facts->stages) num_stages += stages.size();
  if (num_stages > sums.layers.size()) return bound;
  const std::vector<int>& cuts = cuts_of(sums, num_stages);
  const auto first_of = [&](int stage) {
    return stage == 0 ? 0 : static_cast<std::size_t>(cuts[static_cast<std::size_t>(stage) - 1]);
  };
  const auto end_of = [&](int stage) {
    return static_cast<std::size_t>(stage) == cuts.size() ? sums.layers.size() : first_of(stage + 1);
  };
  const auto stage_of = [&](int stage) { return sums.between(first_of(stage), end_of(stage)); };
  const auto work_of = [&](const std::vector<int>& stages) {
    RankWork work{.kept_bytes = kNone, .min_bytes = kNone, .smallest_parameter_bytes = kNone};
    std::vector<std::pair<std::size_t, std::size_t>> ranges;
    for (const int stage : stages) {
      const LayerSum of = stage_of(stage);
      ranges.emplace_back(first_of(stage), end_of(stage));
      work.pass_s += of.forward_s + of.backward_s;
      // A stage keeps the output that it sends until its backward.
      const bool is_sent = static_cast<std::size_t>(stage) < cuts.size() &&
                           std::ranges::find(stages, stage + 1) == stages.end();
      const double sent_bytes = is_sent ? sums.layers[end_of(stage) - 1].output_bytes : 0;
      work.kept_bytes = std::min(work.kept_bytes, of.kept_bytes + sent_bytes);
      work.min_bytes = std::min(work.min_bytes, of.min_bytes + sent_bytes);
      work.smallest_parameter_bytes =
          std::min(work.smallest_parameter_bytes, sums.parameter_bytes_of({ranges.back()}));
    }
    work.parameter_bytes = sums.parameter_bytes_of(ranges);
    return work;
  };
  const WeightSharing sharing = sharing_of(choice);
  const CostLine& send = ExchangeTimes(costs).over(world_size_).send;
  double message_s = 0;
  for (const int cut : cuts)
    message_s = std::max(message_s, send.of(sums.layers[static_cast<std::size_t>(cut) - 1].output_bytes));
  const auto microbatches = static_cast<double>(choice.num_microbatches());
  const double first_end_s = end_s(choice, costs, sums.parameter_bytes_of({{first_of(0), end_of(0)}}));
  // The micro-batch that begins last passes forward and backward through all stages.
  const LayerSum &all = sums.up_to.back(), of_first = stage_of(0);
  bound.step_s =
      std::max(bound.step_s, (microbatches - 1) * of_first.forward_s + all.forward_s +
                                 (facts->splits_backward ? all.input_s : all.backward_s) + first_end_s +
                                 2 * static_cast<double>(choice.pipeline - 1) * message_s);
  if (choice.pipeline == 1) bound.step_s = std::max(bound.step_s, exchanges_s(choice, costs));
  double ramp_s = 0, tail_s = 0;  // of the stages before the rank's first, forward and backward
  for (std::size_t rank = 0; rank < facts->stages.size(); ++rank) {
    const RankWork work = work_of(facts->stages[rank]);
    const double in_flight = facts->in_flight[rank];
    const bool has_gradients = sharing.copies > 1 && (sharing.zero < 2 || sharing.keeps_gradients);
    const double state = state_bytes(sharing, work.parameter_bytes, has_gradients) +
                         gathered_bytes(choice, work.smallest_parameter_bytes, facts->stages[rank].size());
    const double free = parallel.recompute ? 0 : in_flight * work.min_bytes;
    if (bounds_memory(costs)) {
      bound.memory_bytes =
          std::max({bound.memory_bytes, state + free, state_bytes(sharing, work.parameter_bytes, true)});
    }
    double computed_s = ramp_s + microbatches * work.pass_s;
    const double excess = state + in_flight * work.kept_bytes - limit_bytes_;
    if (bounds_memory(costs) && excess > 0 && sums.freed_per_s > 0 && !parallel.recompute) {
      bound.recomputes = true;
      computed_s += microbatches * excess / in_flight / sums.freed_per_s;
    }
    const double own_end_s = end_s(choice, costs, work.smallest_parameter_bytes);
    bound.step_s = std::max(bound.step_s, computed_s + own_end_s);
    if (!facts->splits_backward) bound.step_s = std::max(bound.step_s, computed_s + tail_s + first_end_s);
    const LayerSum first = stage_of(facts->stages[rank].front());
    ramp_s += first.forward_s + message_s;
    if (!facts->splits_backward) tail_s += first.backward_s + message_s;
  }
  return bound;
}

}  // namespace trireme::train
