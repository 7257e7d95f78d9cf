#include "trireme/train/planner/internal/plan_work.h"

#include <algorithm>

#include "trireme/schedule/schedule_table.h"

namespace trireme::train {
namespace {

/// Actions per stage and micro-batch: forward, backward in two parts, four transfers.
constexpr std::int64_t kActions = 7;
/// Gathers of the weights before a forward and a backward, and their release.
constexpr std::int64_t kGathers = 4;
/// Reduction and update of a stage, once per step.
constexpr std::int64_t kUpdates = 4;
/// Work per layer of the model, for any program: its costs, names and bytes.
constexpr std::int64_t kWorkOfLayer = 30;

struct ProgramSizes {
  std::int64_t stages = 1, microbatches = 1;
};

std::int64_t chunks_of_schedule(const ParallelOptions& parallel) {
  if (parallel.chunks > 0) return parallel.chunks;
  const auto row = std::ranges::find(schedule::schedules(), parallel.schedule, &schedule::ScheduleRow::name);
  return row == schedule::schedules().end() ? 1 : row->default_chunks;
}

ProgramSizes program_sizes(const RunConfig& config, std::int64_t layers) {
  const ParallelOptions& parallel = config.parallel;
  const std::int64_t rounds = config.train.accumulation;
  if (parallel.pipeline > 1)
    return {.stages = parallel.pipeline * chunks_of_schedule(parallel),
            .microbatches = std::max<std::int64_t>(1, parallel.microbatches) * rounds};
  const bool are_layers = parallel.chunks == 0 && (parallel.zero == 3 || config.run.exact);
  return {.stages = are_layers ? layers : std::max<std::int64_t>(1, parallel.chunks), .microbatches = rounds};
}

std::int64_t actions_of(const RunConfig& config, const ProgramSizes& sizes) {
  const std::int64_t each =
      kActions + (config.parallel.zero == 3 ? kGathers : 0) + (config.parallel.recompute ? 1 : 0);
  return sizes.stages * (sizes.microbatches * each + kUpdates);
}

}  // namespace

std::int64_t work_of_estimate(const RunConfig& config, std::int64_t layers) {
  return actions_of(config, program_sizes(config, layers)) + kWorkOfLayer * layers;
}

std::int64_t work_of_facts(const RunConfig& config, std::int64_t layers) {
  ProgramSizes sizes = program_sizes(config, layers);
  sizes.microbatches = std::min(sizes.microbatches, 2 * config.parallel.pipeline);
  return actions_of(config, sizes);
}

}  // namespace trireme::train
