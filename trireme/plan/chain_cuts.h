#pragma once
// Where to cut a chain of layers into the stages of a pipeline: the slowest stage or link is as
// fast as can be. Pure; thread-safe.

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "trireme/plan/profile.h"

namespace trireme::plan {

struct ChainOptions {
  std::size_t num_stages = 1;
  double bandwidth_bytes_per_s = std::numeric_limits<double>::infinity();  ///< between neighbours
  /// Ranks of each stage, which take micro-batches in turn; empty: one each.
  std::vector<int> replicas = {};
};

/// The first layer of every stage but the first, rising: `num_stages - 1` cuts. Throws InvalidArgument: more
/// stages than layers, or a bad figure.
std::vector<std::size_t> cut_chain(std::span<const Layer> layers, const ChainOptions& options);

}  // namespace trireme::plan
