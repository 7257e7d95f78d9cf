#pragma once
// Memory that each layer of a model uses for a micro-batch on this machine, measured at the allocator.

#include <vector>

#include "trireme/batch/fields.h"
#include "trireme/model/layer.h"
#include "trireme/plan/stage_memory.h"

namespace trireme::train {

/// How a step goes backward through a layer.
enum class BackwardParts { kOne, kTwo };

/// Forward and backward of every layer on `inputs` (batch, ...), once, and once more in two parts where they
/// are asked for; without times. Parameters, gradients, buffers and the random state are as before. Throws
/// InvalidArgument: a parameter with hooks on its gradient.
std::vector<plan::LayerMemory> profile_memory(const std::vector<model::Layer>& layers, const Fields& inputs,
                                              BackwardParts parts = BackwardParts::kOne);

}  // namespace trireme::train
