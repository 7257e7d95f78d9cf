#pragma once
// How good a model is on a whole data set: each replica of it takes its consecutive part, so that every
// sample counts exactly once whatever the number of ranks, and counts are summed as whole numbers.
// Collective.

#include <cstdint>
#include <functional>
#include <string>

#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/data/sampler.h"

namespace trireme::train {

struct Evaluation {
  std::int64_t samples = 0;
  std::int64_t targets = 0;  ///< classes that were to be found: one per sample, or per token of a text
  std::int64_t correct = 0;
  double loss = 0;  ///< mean cross entropy of the targets
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(targets); }
  bool operator==(const Evaluation&) const = default;
};

/// From a batch of inputs to logits, without gradients and in evaluation mode; an undefined tensor on ranks
/// of a pipeline that do not hold the end of the model.
using Predict = std::function<at::Tensor(const at::Tensor& input)>;

/// `part`: the samples of this rank's replica, which all ranks of all replicas evaluate together. Throws
/// DataError, CommError.
Evaluation evaluate(const Predict& predict, const data::Dataset& dataset, data::Slice part,
                    comm::Context& context);

}  // namespace trireme::train
