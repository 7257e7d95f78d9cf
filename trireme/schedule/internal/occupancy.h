#pragma once
// Memory of a rank in the course of its list, counted without times: a rank allocates and frees in its own
// order. Pure and thread-safe.

#include <vector>

#include "trireme/schedule/program.h"

namespace trireme::schedule {

struct Occupancy {
  int peak_activations = 0;
  double peak_memory = 0;
};

/// Activations of a rank, from F to B or to I and W; between I and W, `kept_for_weight` of one.
Occupancy occupancy_of(const Program& program, std::size_t rank, double kept_for_weight);

/// Per rank, the most versions of any one of its stages' weights that exist at once: those that a micro-batch
/// under way still needs, and the newest. Narayanan et al., "PipeDream", SOSP 2019, section 3.3, and
/// "Memory-Efficient Pipeline-Parallel DNN Training", arXiv 2006.09503, section 3.1.
std::vector<int> peak_weight_versions(const Program& program);

}  // namespace trireme::schedule
