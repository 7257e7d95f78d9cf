#pragma once
// How good a model is on a whole data set: each rank takes its consecutive part, so that every sample counts
// exactly once whatever the number of ranks, and counts are summed as whole numbers. Collective.

#include <cstdint>
#include <string>

#include "trireme/comm/group.h"
#include "trireme/data/dataset.h"
#include "trireme/model/model.h"

namespace trireme::train {

struct Evaluation {
  std::int64_t samples = 0;
  std::int64_t targets = 0;  ///< classes that were to be found: one per sample, or per token of a text
  std::int64_t correct = 0;
  double loss = 0;  ///< mean cross entropy of the targets
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(targets); }
  bool operator==(const Evaluation&) const = default;
};

/// The model is in evaluation mode meanwhile, and in training mode afterwards. Throws DataError, CommError.
Evaluation evaluate(model::Model& model, const data::Dataset& dataset, comm::Group& group,
                    const std::string& precision);

}  // namespace trireme::train
