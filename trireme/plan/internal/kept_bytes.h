#pragma once
// Bytes that a layer keeps of a micro-batch from its forward to its backward.

#include "trireme/plan/recomputation.h"

namespace trireme::plan {

inline bool keeps_input(const Recomputable& layer, bool recomputed) {
  return recomputed || layer.saves_input;
}

/// Of a layer and its outputs, given whether the layer after keeps those.
inline double kept_bytes(const Recomputable& layer, bool recomputed, bool is_kept_behind) {
  const bool keeps_output = is_kept_behind || (!recomputed && layer.saves_output);
  return (recomputed ? 0 : layer.inner_bytes) + (keeps_output ? layer.output_bytes : 0);
}

/// In its backward, besides the kept bytes.
inline double made_again_bytes(const Recomputable& layer, bool recomputed) {
  return recomputed ? layer.inner_bytes + (layer.saves_output ? layer.output_bytes : 0) : 0;
}

}  // namespace trireme::plan
