#pragma once
// What each layer of a model costs on this machine, measured on one micro-batch: the profile from which plan/
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

/// The same as a step runs them: all forwards, then all backwards, with gradients that are added to what is
/// there; `backward` says whether in one part or, besides, in two; besides, as layers that are recomputed.
/// The medians of `repeats` passes, after one that does not count. The memory is that of a micro-batch in
/// training, with whole gradients.
std::vector<LayerTime> time_layers(const std::vector<model::Layer>& layers, const Fields& inputs,
                                   BackwardParts backward, int repeats = 5);

/// What each layer's operators save for its backward, and the time of its forward, as above.
std::vector<plan::Recomputable> profile_recomputable(const std::vector<model::Layer>& layers,
                                                     const Fields& inputs);

}  // namespace trireme::train
