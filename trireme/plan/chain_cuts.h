#pragma once
// Where to cut a chain of layers into the stages of a synchronous pipeline (1F1B: stage s of p holds the
// activations of p - s micro-batches, Narayanan et al., arXiv 2104.04473, section 2.2): the slowest stage or
// link is as fast as can be, and no stage needs more memory than there is. Pure; thread-safe.

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "trireme/plan/profile.h"

namespace trireme::plan {

struct ChainOptions {
  std::size_t num_stages = 1;
  double bandwidth_bytes_per_s = std::numeric_limits<double>::infinity();  ///< between neighbours
  double memory_limit_bytes = std::numeric_limits<double>::infinity();     ///< of each stage
  /// How often a stage holds its parameters: 2 with gradients, 4 with the moments of Adam too.
  double parameter_copies = 1;
};

/// The first layer of every stage but the first, rising: `num_stages - 1` cuts. Throws InvalidArgument: more
/// stages than layers, a bad figure, or a limit that no cut keeps (the message says what is needed).
std::vector<std::size_t> cut_chain(std::span<const Layer> layers, const ChainOptions& options);

/// What stage `stage` of a pipeline holds at most.
double stage_memory_bytes(const Work& work, std::size_t stage, const ChainOptions& options);

}  // namespace trireme::plan
