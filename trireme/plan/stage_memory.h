#pragma once
// Memory of a micro-batch in a stage during a step, from the measurements of each layer: the bytes kept from
// its forward to its backward, and the peak in either. Counted as in recomputation.h, with temporary memory
// within a layer: temporary results, and gradients in progress. In bytes. Pure; thread-safe.

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/plan/recomputation.h"

namespace trireme::plan {

/// Memory of a micro-batch in a layer.
struct LayerMemory {
  Recomputable kept = {};
  double forward_bytes = 0;  ///< peak in the forward next to the input, with kept tensors and outputs
  double backward_bytes =
      0;  ///< peak in the backward next to kept tensors, without its parameters' gradients
  double gradient_bytes = 0;          ///< of its parameters
  double largest_gradient_bytes = 0;  ///< of one of them
  // Where the backward has two parts (zero bubble), of inputs and of weights:
  double input_backward_bytes = 0;  ///< peak in the first next to kept tensors
  double for_weights_bytes = 0;     ///< kept from the first to the second
};

/// Where gradients of parameters come to be.
enum class GradientsOfStage {
  kInPlace,  ///< where they are summed
  kCopied,   ///< in memory of their own, one after another
};

/// Tensors that are recomputed for the backward.
struct Recomputed {
  std::vector<bool> layers;  ///< by layer; empty: none
  bool stage = false;        ///< all of the stage, of which its input alone is kept
};

/// Where a stage's tensors come from and go to, which a stage holds until its backward.
struct StageEdges {
  double input_bytes = 0;   ///< its input from another stage; 0 for the first
  double output_bytes = 0;  ///< its output to another rank
};

/// How a stage is computed.
struct StageForm {
  Recomputed recomputed = {};
  StageEdges edges = {};
  GradientsOfStage gradients = GradientsOfStage::kInPlace;
};

struct StageMemory {
  double kept_bytes = 0;      ///< from the forward to the backward
  double forward_bytes = 0;   ///< most in the forward, of this micro-batch
  double backward_bytes = 0;  ///< peak in the backward, of this micro-batch: kept tensors are freed in it
  double first_backward_bytes = 0;    ///< the same where gradients of its parameters are made again, and stay
  double first_gradient_bytes = 0;    ///< of that, those gradients
  double gradient_bytes = 0;          ///< of its parameters
  double input_backward_bytes = 0;    ///< most in the first part of a backward of two, of this micro-batch
  double for_weights_bytes = 0;       ///< from the first to the second
  double largest_gradient_bytes = 0;  ///< of one parameter: the second part makes each next to its sum
};

/// Of a stage of at least one layer.
StageMemory memory_of_stage(std::span<const LayerMemory> layers, const StageForm& form);

}  // namespace trireme::plan
