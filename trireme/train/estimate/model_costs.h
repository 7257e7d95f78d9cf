#pragma once
// The cost of a model by layer on a micro-batch, measured on this machine: bytes and seconds. Values.

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/plan/stage_memory.h"

namespace trireme::train {

/// A parameter of a layer.
struct ParameterUse {
  std::string name;
  std::int64_t bytes = 0;
  std::int64_t numel = 0;
  bool is_rounded = false;  ///< by autocast at every use (parallel/zero/rounded_parameters.h)
};

/// Seconds of a layer on a micro-batch; 0 where it was not timed.
struct LayerTime {
  double forward_s = 0;
  double backward_s = 0;         ///< gradients of inputs and of weights together
  double backward_input_s = 0;   ///< of a backward in two parts, the first
  double backward_weight_s = 0;  ///< and the second
  // Of a layer that is recomputed.
  double bare_forward_s = 0;         ///< a forward that keeps nothing for a backward
  double recomputed_backward_s = 0;  ///< another forward, and the backward right after it
};

/// A layer of a model: its memory on a micro-batch, its time, its parameters.
struct LayerUse {
  std::string name;
  plan::LayerMemory memory;
  std::vector<ParameterUse> parameters = {};
  LayerTime time = {};
};

/// Elements of all parameters of the layer.
inline std::int64_t numel_of(const LayerUse& layer) {
  std::int64_t numel = 0;
  for (const ParameterUse& each : layer.parameters) numel += each.numel;
  return numel;
}

/// A model on a micro-batch of `samples`.
struct ModelUse {
  std::vector<LayerUse> layers = {};         ///< the last is the loss
  double input_bytes = 0, target_bytes = 0;  ///< of the micro-batch
  std::int64_t samples = 0;
};

}  // namespace trireme::train
