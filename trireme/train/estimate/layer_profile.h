#pragma once
// What each layer of a model costs on this machine, measured on one micro-batch: the profile from which plan/
// cuts a chain into stages.

#include <vector>

#include "trireme/batch/fields.h"
#include "trireme/model/layer.h"
#include "trireme/plan/profile.h"
#include "trireme/plan/recomputation.h"

namespace trireme::train {

/// Forward and backward of every layer on `input` (batch, ...), after a first time that does not count, the
/// median of `repeats`; the bytes that stay allocated between them, those of parameters and of outputs.
/// Parameters, gradients, buffers and the random state are as before. Time: that of repeats + 1 steps.
std::vector<plan::Layer> profile_layers(const std::vector<model::Layer>& layers, const Fields& inputs,
                                        int repeats = 3);

/// What each layer's operators save for its backward, and the time of its forward, as above.
std::vector<plan::Recomputable> profile_recomputable(const std::vector<model::Layer>& layers,
                                                     const Fields& inputs);

}  // namespace trireme::train
