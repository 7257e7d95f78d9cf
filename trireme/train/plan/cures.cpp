#include "trireme/train/plan/internal/cures.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace trireme::train {

bool is_program_file(const std::string& schedule) { return schedule.ends_with(".csv"); }

Cure replicas_as_there_are_ranks() { return set(&RunConfig::parallel, &ParallelOptions::data, 0); }

Cure replicas_together() {
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

Cure synchronous_schedule() {
  return [](RunConfig& config) {
    config.parallel.schedule = "1f1b";
    config.parallel.microbatches = 0;
    config.parallel.vertical_sync = false;
  };
}

namespace {

std::vector<std::int64_t> divisors_of(std::int64_t number) {
  std::vector<std::int64_t> divisors;
  for (std::int64_t each = 1; each <= number; ++each) {
    if (number % each == 0) divisors.push_back(each);
  }
  return divisors;
}

/// The nearest first, and smaller ones before all greater ones.
void order_by_distance(std::vector<std::int64_t>& numbers, std::int64_t asked) {
  std::ranges::stable_sort(
      numbers, {}, [asked](std::int64_t each) { return std::pair(each > asked, std::abs(each - asked)); });
}

/// Sizes of an axis that fit beside `others` ranks and that `fits`, the nearest to that of `config` first.
template <class Fits>
Cures other_sizes(std::int64_t ParallelOptions::*axis, const RunConfig& config, int world_size,
                  std::int64_t others, const Fits& fits) {
  if (world_size % others != 0) return {};
  std::vector<std::int64_t> sizes = divisors_of(world_size / others);
  std::erase_if(sizes, [&](std::int64_t size) { return !fits(size); });
  order_by_distance(sizes, config.parallel.*axis);
  Cures cures;
  for (const std::int64_t size : sizes) {
    cures.emplace_back([axis, size](RunConfig& changed) {
      changed.parallel.*axis = size;
      changed.parallel.data = 0;
    });
  }
  return cures;
}

}  // namespace

Cures other_shard_ranks(int copies) {
  Cures cures;
  for (int ranks = copies - 1; ranks > 1; --ranks) {
    if (copies % ranks == 0) cures.push_back(set(&RunConfig::parallel, &ParallelOptions::shard_ranks, ranks));
  }
  cures.push_back(set(&RunConfig::parallel, &ParallelOptions::shard_ranks, 0));
  return cures;
}

std::string divisors_in_words(std::int64_t number) {
  std::vector<std::string> words;
  for (const std::int64_t each : divisors_of(number)) words.push_back(std::to_string(each));
  const std::string last = words.back();
  words.pop_back();
  return words.empty() ? last : join(words) + " or " + last;
}

Cures other_tensors(const RunConfig& config, int world_size) {
  const ParallelOptions& parallel = config.parallel;
  if (parallel.tensor == 1) return {};
  return other_sizes(&ParallelOptions::tensor, config, world_size, parallel.pipeline * parallel.context,
                     [&](std::int64_t size) { return size != parallel.tensor; });
}

Cures other_contexts(const RunConfig& config, int world_size) {
  const ParallelOptions& parallel = config.parallel;
  if (parallel.context == 1) return {};
  return other_sizes(&ParallelOptions::context, config, world_size, parallel.pipeline * parallel.tensor,
                     [&](std::int64_t size) { return size != parallel.context; });
}

Cures other_pipelines(const RunConfig& config, int world_size, std::int64_t least) {
  const ParallelOptions& parallel = config.parallel;
  return other_sizes(&ParallelOptions::pipeline, config, world_size, parallel.tensor * parallel.context,
                     [&](std::int64_t length) { return length >= least; });
}

Cures cures_of_a_program(const RunConfig& config, int world_size) {
  Cures cures = {set(&RunConfig::train, &TrainOptions::accumulation, 1),
                 set(&RunConfig::parallel, &ParallelOptions::vertical_sync, false),
                 set(&RunConfig::parallel, &ParallelOptions::microbatches, 0)};
  if (is_program_file(config.parallel.schedule)) {
    cures.push_back(set(&RunConfig::parallel, &ParallelOptions::recompute, true));
    for (Cure& cure : other_pipelines(config, world_size, /*least=*/2)) cures.push_back(std::move(cure));
    return cures;  // nobody writes a program in order to run another one, or none
  }
  cures.push_back(set(&RunConfig::parallel, &ParallelOptions::chunks, 0));
  cures.emplace_back([](RunConfig& changed) {  // up to a multiple of the ranks
    const std::int64_t ranks = changed.parallel.pipeline;
    changed.parallel.microbatches = (changed.parallel.microbatches + ranks - 1) / ranks * ranks;
  });
  cures.push_back(synchronous_schedule());
  return cures;
}

}  // namespace trireme::train
