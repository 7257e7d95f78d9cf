#include "trireme/train/planner/internal/plan_space.h"

#include <algorithm>

#include "trireme/schedule/schedule_table.h"
#include "trireme/train/plan/internal/fixes.h"
#include "trireme/train/planner/planned_keys.h"

namespace trireme::train {
namespace {

using Counts = std::vector<std::int64_t>;

/// `values`, unless the key is not at its default: then the configured value.
template <class Value>
std::vector<Value> kept_or(const Value& configured, const Value& standard, std::vector<Value> values) {
  if (configured != standard) return {configured};
  return values;
}

/// first, 2 first, 4 first, ... up to `most`; at least `first`.
Counts doublings(std::int64_t first, std::int64_t most) {
  Counts found = {first};
  while (found.back() * 2 <= most) found.push_back(found.back() * 2);
  return found;
}

/// Most micro-batches per pipeline rank for schedules whose generator searches. A search over many takes
/// seconds. It gains nothing, as only the first and last ones cause the bubble.
constexpr std::int64_t kSearchedMicrobatches = 2;
/// Pipeline ranks up to which such schedules are tried.
constexpr std::int64_t kSearchedRanks = 16;

bool is_free(const schedule::ScheduleRow& row) {
  return !row.asynchronous && row.placement != schedule::Placement::kBothWays &&
         row.placement != schedule::Placement::kReplicated;
}

class Space {
 public:
  Space(const RunConfig& config, const ModelForm& form, const SpaceOptions& options)
      : config_(config), form_(form), options_(options) {}

  std::vector<PlanChoice> all() {
    const std::int64_t ranks = options_.world_size / (form_.tensor * form_.context);
    for (const std::int64_t pipeline :
         kept_or(config_.parallel.pipeline, standard_.pipeline, divisors_of(ranks))) {
      if (pipeline > options_.layers || ranks % pipeline != 0) continue;
      const std::int64_t replicas = ranks / pipeline;
      const std::int64_t asked = config_.parallel.data;
      if (asked != 0 && asked != replicas) continue;
      if (pipeline == 1)
        of_replicas(replicas);
      else
        of_stages(pipeline, replicas);
    }
    return std::move(all_);
  }

 private:
  PlanChoice choice() const {
    return {.tensor = form_.tensor,
            .context = form_.context,
            .sequence = form_.sequence,
            .schedule = config_.parallel.schedule,
            .chunks = config_.parallel.chunks,
            .microbatches = config_.parallel.microbatches};
  }

  std::int64_t samples_of(std::int64_t replicas) const { return config_.train.global_batch / replicas; }

  void of_replicas(std::int64_t replicas) {
    if (samples_of(replicas) < 1) return;
    for (const std::int64_t rounds :
         kept_or(config_.train.accumulation, std::int64_t{1}, doublings(1, samples_of(replicas)))) {
      PlanChoice each = choice();
      each.accumulation = rounds;
      with_shards(each, replicas);
    }
  }

  void of_stages(std::int64_t pipeline, std::int64_t replicas) {
    const std::int64_t most = samples_of(replicas) / config_.train.accumulation;
    if (most < 1) return;
    std::vector<std::string> schedules;
    for (const schedule::ScheduleRow& row : schedule::schedules()) {
      const bool has_layers = pipeline * row.default_chunks <= options_.layers;
      const bool is_quick = !row.is_searched || pipeline <= kSearchedRanks;
      if (is_free(row) && has_layers && is_quick) schedules.emplace_back(row.name);
    }
    for (const std::string& name :
         kept_or(config_.parallel.schedule, standard_.schedule, std::move(schedules))) {
      for (const std::int64_t chunks : chunks_of(name, pipeline)) {
        for (const std::int64_t microbatches :
             kept_or(config_.parallel.microbatches, std::int64_t{0},
                     doublings(std::min(pipeline, most), max_microbatches(name, pipeline, most)))) {
          PlanChoice each = choice();
          each.pipeline = pipeline;
          each.schedule = name;
          each.chunks = chunks;
          each.microbatches = microbatches;
          each.accumulation = config_.train.accumulation;
          with_shards(each, replicas);
        }
      }
    }
  }

  /// A schedule from a file is not searched.
  static std::int64_t max_microbatches(const std::string& name, std::int64_t pipeline, std::int64_t samples) {
    const auto row = std::ranges::find(schedule::schedules(), name, &schedule::ScheduleRow::name);
    const bool is_searched = row != schedule::schedules().end() && row->is_searched;
    return is_searched ? std::min(samples, kSearchedMicrobatches * pipeline) : samples;
  }

  Counts chunks_of(const std::string& name, std::int64_t pipeline) const {
    if (config_.parallel.chunks != 0) return {config_.parallel.chunks};
    const auto row = std::ranges::find(schedule::schedules(), name, &schedule::ScheduleRow::name);
    if (row == schedule::schedules().end() || !row->chunks_can_change) return {0};
    const std::int64_t most = options_.layers / pipeline;
    return most < 2 ? Counts{} : doublings(2, most);
  }

  void with_shards(const PlanChoice& choice, std::int64_t replicas) {
    const std::int64_t copies = replicas * form_.context;
    const Counts stages = copies == 1 ? Counts{0} : Counts{0, 1, 2, 3};
    for (const std::int64_t zero : kept_or(config_.parallel.zero, std::int64_t{0}, stages)) {
      for (const std::int64_t shard_ranks :
           kept_or(config_.parallel.shard_ranks, std::int64_t{0}, shard_groups(zero, copies, choice))) {
        const bool may_keep = zero >= 2 && choice.num_microbatches() > 1;
        for (const bool keeps :
             kept_or(config_.parallel.keep_gradients, false,
                     may_keep ? std::vector<bool>{false, true} : std::vector<bool>{false})) {
          all_.push_back(choice);
          all_.back().zero = zero;
          all_.back().shard_ranks = shard_ranks;
          all_.back().keep_gradients = keeps;
        }
      }
    }
  }

  /// 0 for all copies; with several hosts, also the copies on one host. Copies of a stage have adjacent
  /// ranks, apart from the tensor-parallel ranks between them.
  Counts shard_groups(std::int64_t zero, std::int64_t copies, const PlanChoice& choice) const {
    Counts groups = {0};
    if (zero == 0 || options_.ranks_of_host == 0) return groups;
    const std::int64_t of_host = options_.ranks_of_host / choice.tensor;
    if (of_host > 1 && of_host < copies && copies % of_host == 0) groups.push_back(of_host);
    return groups;
  }

  const RunConfig& config_;
  const ModelForm& form_;
  const SpaceOptions& options_;
  const ParallelOptions standard_;
  std::vector<PlanChoice> all_;
};

}  // namespace

std::int64_t PlanChoice::samples(std::int64_t global_batch, int world_size) const {
  const std::int64_t parts = replicas(world_size) * num_microbatches();
  return (global_batch + parts - 1) / parts;
}

RunConfig with_choice(const RunConfig& config, const PlanChoice& choice) {
  RunConfig changed = config;
  ParallelOptions& parallel = changed.parallel;
  parallel.pipeline = choice.pipeline;
  parallel.tensor = choice.tensor;
  parallel.context = choice.context;
  parallel.sequence = choice.sequence;
  parallel.zero = choice.zero;
  parallel.shard_ranks = choice.shard_ranks;
  parallel.keep_gradients = choice.keep_gradients;
  changed.train.accumulation = choice.accumulation;
  if (choice.pipeline > 1) {
    parallel.schedule = choice.schedule;
    parallel.chunks = choice.chunks;
    parallel.microbatches = choice.microbatches;
  }
  return changed;
}

RunConfig in_form(const RunConfig& config, const ModelForm& form, int world_size) {
  RunConfig changed = before_planning(config, world_size);
  changed.parallel.tensor = form.tensor;
  changed.parallel.context = form.context;
  changed.parallel.sequence = form.sequence;
  return changed;
}

std::vector<ModelForm> model_forms(const RunConfig& config, int world_size) {
  std::vector<ModelForm> forms;
  const ParallelOptions standard, &given = config.parallel;
  for (const std::int64_t tensor : kept_or(given.tensor, standard.tensor, divisors_of(world_size))) {
    for (const std::int64_t context : kept_or(given.context, standard.context, divisors_of(world_size))) {
      if (world_size % (tensor * context) != 0) continue;
      forms.push_back({.tensor = tensor, .context = context, .sequence = given.sequence});
    }
  }
  return forms;
}

std::vector<PlanChoice> plan_choices(const RunConfig& config, const ModelForm& form,
                                     const SpaceOptions& options) {
  return Space(config, form, options).all();
}

}  // namespace trireme::train
