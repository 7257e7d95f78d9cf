#pragma once
// Costs of each layer of a model on this machine, measured on one micro-batch: the profile from which plan/
// cuts a chain into stages.

#include <vector>

#include "trireme/batch/fields.h"
#include "trireme/model/layer.h"
#include "trireme/plan/profile.h"
#include "trireme/plan/recomputation.h"
#include "trireme/train/estimate/layer_memory.h"
#include "trireme/train/estimate/model_costs.h"

namespace trireme::train {

/// Forward and backward of every layer on `input` (batch, ...), after a first time that does not count, the
/// median of `repeats`; the bytes that stay allocated between them, those of parameters and of outputs.
/// Parameters, gradients, buffers and the random state are as before. Time: that of repeats + 1 steps.
std::vector<plan::Layer> profile_layers(const std::vector<model::Layer>& layers, const Fields& inputs,
                                        int repeats = 3);

/// The same in the order of a step: all forwards, then all backwards, with gradients that are added to
/// existing ones. `backward`: in one part only, or also in two. Layers are also run with recomputation. Times
/// are medians of `repeats` passes, after one that does not count. Memory is that of a micro-batch in
/// training, with whole gradients.
std::vector<LayerTime> time_layers(const std::vector<model::Layer>& layers, const Fields& inputs,
                                   BackwardParts backward, int repeats = 5);

/// Bytes that each layer's operators save for its backward, and the time of its forward, as above.
std::vector<plan::Recomputable> profile_recomputable(const std::vector<model::Layer>& layers,
                                                     const Fields& inputs);

}  // namespace trireme::train
