#pragma once
// How long exchanges of weights and gradients take in groups of other sizes than were measured. Pure.

#include <string>

#include "trireme/train/estimate/measurements.h"
#include "trireme/train/report/memory_report.h"

namespace trireme::train {

/// How the copies of a stage's weights shard them in a step.
struct WeightSharing {
  int copies = 1;  ///< of the stage, over all ranks
  int shards = 1;  ///< ranks of a group that holds one copy of the sharded state
  int tensor = 1;  ///< ranks that hold parts of the same layers; copies are that far apart
  int zero = 0;
  bool keeps_gradients = false;
  int microbatches = 1;
  std::string codec = "none";  ///< parallel.compression

  bool is_sharded() const { return zero > 0 && copies > 1; }
};

/// Whether groups of so many consecutive ranks are each on one of several hosts.
bool is_within_host(const Measurements& measured, int span);

class ExchangeTimes {
 public:
  explicit ExchangeTimes(const Measurements& measured) : measured_(measured) {}

  /// Of groups within so many consecutive ranks.
  const ExchangeCosts& over(int span) const;
  /// Of a group of `ranks` within `span` consecutive ranks.
  double exchange_s(CostLine ExchangeCosts::*line, double bytes, int ranks, int span) const;
  /// All reductions of a step: shards of gradients are reduced with each micro-batch, unless they add up
  /// whole. Throws InvalidArgument: the codec was not measured.
  double reduce_s(const WeightSharing& sharing, double bytes) const;
  /// The weights of a stage on a rank that has a part of them.
  double gather_s(const WeightSharing& sharing, double bytes, WeightsMemory weights) const;

 private:
  double codec_factor(const std::string& codec, double bytes, int span) const;

  const Measurements& measured_;
};

}  // namespace trireme::train
