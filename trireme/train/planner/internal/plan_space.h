#pragma once
// The combinations of a planner's keys.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trireme/train/config/run_config.h"
#include "trireme/train/planner/model_form.h"

namespace trireme::train {

/// One combination.
struct PlanChoice {
  std::int64_t pipeline = 1, tensor = 1, context = 1;
  bool sequence = false;
  std::string schedule;
  std::int64_t chunks = 0, microbatches = 0, accumulation = 1;
  std::int64_t zero = 0, shard_ranks = 0;
  bool keep_gradients = false;

  /// Micro-batches of a replica in a step.
  std::int64_t num_microbatches() const { return accumulation * (pipeline > 1 ? microbatches : 1); }
  std::int64_t replicas(int world_size) const { return world_size / (pipeline * tensor * context); }
  /// Samples of the largest micro-batch.
  std::int64_t samples(std::int64_t global_batch, int world_size) const;
};

/// `config` with the keys of the choice.
RunConfig with_choice(const RunConfig& config, const PlanChoice& choice);

/// The configuration for measuring a form of the model: before_planning() with the ranks of the form.
RunConfig in_form(const RunConfig& config, const ModelForm& form, int world_size);

/// Forms whose sizes divide the ranks, the whole model first. Kept keys stay.
std::vector<ModelForm> model_forms(const RunConfig& config, int world_size);

struct SpaceOptions {
  int world_size = 1;
  int ranks_of_host = 0;    ///< 0: all
  std::int64_t layers = 1;  ///< of the model
};

/// All combinations for that form. Kept keys stay. Micro-batches and chunks in powers of two.
std::vector<PlanChoice> plan_choices(const RunConfig& config, const ModelForm& form,
                                     const SpaceOptions& options);

}  // namespace trireme::train
