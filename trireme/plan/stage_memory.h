#pragma once
// What a micro-batch holds in a stage while a step runs, put together from what was measured of each layer:
// what it keeps from its forward to its backward, and the most that there is in either. Counted as
// recomputation.h counts, and besides what comes and goes within a layer: temporary results, and gradients on
// their way. In bytes. Pure; thread-safe.

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/plan/recomputation.h"

namespace trireme::plan {

/// What a micro-batch holds in a layer.
struct LayerMemory {
  Recomputable kept = {};
  double forward_bytes = 0;  ///< most in the forward next to the input: what is kept and returned included
  double backward_bytes =
      0;  ///< most in the backward next to what was kept, without its parameters' gradients
  double gradient_bytes = 0;          ///< of its parameters
  double largest_gradient_bytes = 0;  ///< of one of them
  // Where the backward has two parts (zero bubble), of inputs and of weights:
  double input_backward_bytes = 0;  ///< most in the first next to what was kept
  double for_weights_bytes = 0;     ///< kept from the first to the second
};

/// Where gradients of parameters come to be.
enum class GradientsOfStage {
  kInPlace,  ///< where they are summed
  kCopied,   ///< in memory of their own, one after another
};

/// What is computed again for the backward.
struct Recomputed {
  std::vector<bool> layers;  ///< by layer; empty: none
  bool stage = false;        ///< all of the stage, of which its input alone is kept
};

/// Where a stage's tensors come from and go to, which a stage holds until its backward.
struct StageEdges {
  double input_bytes = 0;   ///< what it gets of another stage; 0 for the first
  double output_bytes = 0;  ///< what it sends to another rank
};

/// How a stage is computed.
struct StageForm {
  Recomputed recomputed = {};
  StageEdges edges = {};
  GradientsOfStage gradients = GradientsOfStage::kInPlace;
};

struct StageMemory {
  double kept_bytes = 0;     ///< from the forward to the backward
  double forward_bytes = 0;  ///< most in the forward, of this micro-batch
  double backward_bytes =
      0;  ///< most in the backward, of this micro-batch: what was kept is given back in it
  double first_backward_bytes = 0;  ///< the same where gradients of its parameters are made again, and stay
  double first_gradient_bytes = 0;  ///< of that, those gradients
  double gradient_bytes = 0;        ///< of its parameters
  double input_backward_bytes = 0;  ///< most in the first part of a backward of two, of this micro-batch
  double for_weights_bytes = 0;     ///< from the first to the second
};

/// Of a stage of at least one layer.
StageMemory memory_of_stage(std::span<const LayerMemory> layers, const StageForm& form);

}  // namespace trireme::plan
