#pragma once
// Models with experts: layers of which each expert computes for some of the samples or tokens, and which can
// be split over ranks. A custom model gives their number by deriving from HasExperts. The weights of the
// experts of a layer are parameters whose rows (dim 0) are the experts; a rank that has some of them names
// them by model/parameter_box.h. No model that is shipped has experts.

#include <cstdint>

#include "trireme/model/model.h"

namespace trireme::model {

class HasExperts {
 public:
  HasExperts() = default;
  HasExperts(const HasExperts&) = default;
  HasExperts& operator=(const HasExperts&) = default;
  virtual ~HasExperts() = default;
  /// Of each layer that has some; at least 1.
  virtual std::int64_t num_experts() const = 0;
};

/// 0: the model has none.
inline std::int64_t num_experts(const Model& model) {
  const auto* own = dynamic_cast<const HasExperts*>(&model);
  return own == nullptr ? 0 : own->num_experts();
}

}  // namespace trireme::model
