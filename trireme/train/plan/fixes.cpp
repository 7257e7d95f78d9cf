#include "trireme/train/plan/internal/fixes.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "trireme/train/config/internal/config_keys.h"
#include "trireme/train/plan/internal/axis_ranks.h"

namespace trireme::train {

bool is_program_file(const std::string& schedule) { return schedule.ends_with(".csv"); }

Fix replicas_as_there_are_ranks() { return set(&RunConfig::parallel, &ParallelOptions::data, 0); }

Fix replicas_together() {
  return [](RunConfig& changed) {
    const ParallelOptions none;
    ParallelOptions& parallel = changed.parallel;
    parallel.local_steps = none.local_steps;
    parallel.local_ranks = none.local_ranks;
    parallel.local_from_step = none.local_from_step;
    parallel.local_fragments = none.local_fragments;
    parallel.local_delay = none.local_delay;
    parallel.outer_optimizer = none.outer_optimizer;
  };
}

std::string pipeline_in_words(const RunConfig& config) {
  return text("parallel.pipeline = ", config.parallel.pipeline, ": ");
}

Fix synchronous_schedule() {
  return [](RunConfig& config) {
    config.parallel.schedule = "1f1b";
    config.parallel.microbatches = 0;
    config.parallel.stage_replicas = {};
    config.parallel.vertical_sync = false;
  };
}

std::vector<std::int64_t> divisors_of(std::int64_t number) {
  std::vector<std::int64_t> divisors;
  for (std::int64_t each = 1; each <= number; ++each) {
    if (number % each == 0) divisors.push_back(each);
  }
  return divisors;
}

namespace {

/// Smaller numbers first, nearest first, then the greater ones.
void order_by_distance(std::vector<std::int64_t>& numbers, std::int64_t asked) {
  std::ranges::stable_sort(
      numbers, {}, [asked](std::int64_t each) { return std::pair(each > asked, std::abs(each - asked)); });
}

/// Sizes of the axis `key` that divide the ranks which the other axes leave, and that `fits` accepts. Sorted
/// by order_by_distance().
template <class Fits>
Fixes other_sizes(const std::string& key, const RunConfig& config, int world_size, const Fits& fits) {
  const std::int64_t others = ranks_of_other_axes(config, key);
  if (world_size % others != 0) return {};
  const ConfigKey& axis = find_key(config_key_table(config), key);
  std::vector<std::int64_t> sizes = divisors_of(world_size / others);
  std::erase_if(sizes, [&](std::int64_t size) { return !fits(size); });
  order_by_distance(sizes, std::get<std::int64_t>(axis.get(config)));
  Fixes fixes;
  for (const std::int64_t size : sizes) {
    fixes.emplace_back([set = axis.set, size](RunConfig& changed) {
      set(changed, ConfigValue(size));
      changed.parallel.data = 0;
    });
  }
  return fixes;
}

}  // namespace

Fixes other_shard_ranks(int copies) {
  Fixes fixes;
  for (int ranks = copies - 1; ranks > 1; --ranks) {
    if (copies % ranks == 0) fixes.push_back(set(&RunConfig::parallel, &ParallelOptions::shard_ranks, ranks));
  }
  fixes.push_back(set(&RunConfig::parallel, &ParallelOptions::shard_ranks, 0));
  return fixes;
}

std::string divisors_in_words(std::int64_t number) {
  std::vector<std::string> words;
  for (const std::int64_t each : divisors_of(number)) words.push_back(std::to_string(each));
  const std::string last = words.back();
  words.pop_back();
  return words.empty() ? last : join(words) + " or " + last;
}

Fixes other_ranks_along(const std::string& key, const RunConfig& config, int world_size) {
  const auto asked = std::get<std::int64_t>(find_key(config_key_table(config), key).get(config));
  if (asked == 1) return {};
  return other_sizes(key, config, world_size, [asked](std::int64_t size) { return size != asked; });
}

Fixes other_pipelines(const RunConfig& config, int world_size, std::int64_t least) {
  return other_sizes("parallel.pipeline", config, world_size,
                     [least](std::int64_t length) { return length >= least; });
}

Fixes fixes_of_a_program(const RunConfig& config, int world_size) {
  Fixes fixes = {set(&RunConfig::train, &TrainOptions::accumulation, 1),
                 set(&RunConfig::parallel, &ParallelOptions::vertical_sync, false),
                 set(&RunConfig::parallel, &ParallelOptions::microbatches, 0),
                 set(&RunConfig::parallel, &ParallelOptions::stage_replicas, std::vector<std::int64_t>())};
  if (is_program_file(config.parallel.schedule)) {
    fixes.push_back(set(&RunConfig::parallel, &ParallelOptions::recompute, true));
    for (Fix& fix : other_pipelines(config, world_size, /*least=*/2)) fixes.push_back(std::move(fix));
    return fixes;  // another schedule is no fix for a program file of the user
  }
  fixes.push_back(set(&RunConfig::parallel, &ParallelOptions::chunks, 0));
  fixes.emplace_back([](RunConfig& changed) {  // rounds up to a multiple of the ranks
    const std::int64_t ranks = changed.parallel.pipeline;
    changed.parallel.microbatches = (changed.parallel.microbatches + ranks - 1) / ranks * ranks;
  });
  fixes.push_back(synchronous_schedule());
  return fixes;
}

}  // namespace trireme::train
