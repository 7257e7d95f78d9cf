#pragma once
// Evaluation of a model on a whole data set. Each replica takes its consecutive part, so every sample counts
// exactly once for any number of ranks. Sums are divided once, when all are there. Collective.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trireme/batch/fields.h"
#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/data/sampler.h"
#include "trireme/objective/objective.h"

namespace trireme::train {

struct MetricValue {
  std::string name;
  double value = 0;
  double count = 0;  ///< divisor of its sum
  objective::Better better = objective::Better::kHigher;
  bool operator==(const MetricValue&) const = default;

  /// Higher is better.
  double score() const { return better == objective::Better::kHigher ? value : -value; }
};

/// Results of one evaluation, the same on all ranks.
struct Evaluation {
  std::int64_t samples = 0;
  double loss = 0;                   ///< mean of the objective
  std::vector<MetricValue> metrics;  ///< in the order of the objective's
  /// "loss", or a metric that was measured. Throws InvalidArgument, with the names that are known.
  MetricValue metric(const std::string& name) const;
  double operator[](const std::string& name) const { return metric(name).value; }
  bool operator==(const Evaluation&) const = default;
};

/// From a batch of inputs to outputs, without gradients and in evaluation mode; one undefined tensor on ranks
/// of a pipeline that do not hold the end of the model.
using Predict = std::function<Fields(const Fields& inputs)>;

/// Samples of this rank's replica, which all ranks of all replicas evaluate together.
struct EvaluatedPart {
  const data::Dataset& dataset;
  data::Slice part;
  std::int64_t batch;  ///< samples at a time
  data::Needed needed = {};
  /// Samples of the largest part of a replica. Where this one has no samples left and that has, `sit_out` is
  /// called instead of predicting.
  std::int64_t longest_part = 0;
  std::function<void()> sit_out = nullptr;
};

/// Throws DataError, also when no target counts; CommError.
Evaluation evaluate(const Predict& predict, const EvaluatedPart& samples,
                    const objective::Objective& objective, comm::Context& context);

}  // namespace trireme::train
