#pragma once
// train.recompute_layers and train.activation_budget: layers that keep only their inputs for their backward
// and recompute the rest (model/checkpointed.h). The configuration names them, or they are chosen from a
// profile so that activations stay under so many bytes (plan/recomputation.h). No bit of a result depends on
// it.

#include <functional>
#include <string>
#include <vector>

#include "trireme/model/model.h"
#include "trireme/plan/recomputation.h"
#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {

/// Throws InvalidArgument: a budget that cannot be read, or keys that exclude each other.
void check_recomputation(const RunConfig& config);

/// Throws InvalidArgument, which lists the model's layers: a name that is none of theirs; a model without
/// layers().
void check_recomputed_layers(const RunConfig& config, model::Model& model);

/// Which layers of a model are recomputed.
struct RecomputedLayers {
  std::vector<bool> layers;  ///< by layer
  std::string why;           ///< for a log; empty: they are named
};

/// For layers of those names: the layers that the configuration names, or none. With a budget the memory of a
/// micro-batch by `measure` decides. Throws InvalidArgument: a name that no layer has, or a budget that is
/// too small, with the smallest possible one.
RecomputedLayers recomputed_layers(const ParallelPlan& plan, const std::vector<std::string>& names,
                                   const std::function<std::vector<plan::Recomputable>()>& measure);

}  // namespace trireme::train
