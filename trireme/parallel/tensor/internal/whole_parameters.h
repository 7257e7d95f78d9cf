#pragma once
// Code without support of tensor parallelism cannot clip its gradients: their norm is over its ranks, too.
// Pure.

#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/model/layer.h"
#include "trireme/model/parameter_box.h"

namespace trireme::parallel {

/// Throws InvalidArgument, by name, where a layer holds part of a parameter. `holder` is the object that was
/// asked to clip.
inline void require_whole_parameters(const std::vector<model::Layer>& layers, const std::string& holder) {
  for (const model::Layer& layer : layers) {
    for (const auto& module : layer.modules) {
      for (const model::ParameterBox& box : model::parameter_boxes(*module)) {
        require(
            !box.is_part, "parameter '", box.name, "' of layer '", layer.name,
            "' is split over the ranks of tensor parallelism, which a ", holder,
            " does not know: train such models with a Trainer (train.clip_norm), or clip by a norm of your "
            "own (optim::clip_to_norm), whose squares are added up over those ranks, too");
      }
    }
  }
}

}  // namespace trireme::parallel
