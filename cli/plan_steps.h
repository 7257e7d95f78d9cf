#pragma once
// What a step takes as the trainer would run it: replicas of a pipeline, a schedule that is flushed after
// each step, so many micro-batches, links. Simulated with the times of a profile, data parallelism by the
// same rules next to the pipelines. Pure.

#include <cstddef>
#include <string>
#include <vector>

#include "trireme/plan/profile.h"

namespace trireme::cli {

struct StepOptions {
  std::size_t num_workers = 1;
  double bandwidth_bytes_per_s = 0;
  std::string schedule = "1f1b";
  std::size_t num_microbatches = 0;  ///< of a step, of all workers, of the profile's size; 0: four per worker
};

/// One way to split the workers.
struct StepPlan {
  std::size_t pipeline = 1;       ///< workers over which the layers are cut
  std::size_t data = 1;           ///< such pipelines
  std::size_t microbatches = 1;   ///< of each of them
  std::vector<std::size_t> cuts;  ///< first state of each stage but the first
  double step_s = 0;
};

/// The fastest first. A pipeline that the schedule, the layers or the micro-batches do not allow is left out.
/// Throws InvalidArgument: an unknown schedule, one that is never flushed, micro-batches that the workers
/// cannot split.
std::vector<StepPlan> step_plans(const plan::Profile& profile, const StepOptions& options);

/// The keys that let `trireme train` run it. Throws InvalidArgument where the profile is no chain of layers.
std::string to_toml(const StepPlan& step, const plan::Profile& profile, const StepOptions& options);

}  // namespace trireme::cli
