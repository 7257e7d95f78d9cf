#pragma once
// Which layers of a chain are to compute their forward again for the backward, so that activations stay under
// a budget and the time that is added is least. What is counted: a layer keeps its activations from forward
// to backward, its output among them, or, recomputed, its output alone; when its backward comes it has all of
// them again, beside what it kept. The peak is the largest sum over the layers' backwards, of all
// micro-batches under way. Exact: partial choices are extended layer by layer, and one is dropped only when
// another is no worse in every respect (Nemhauser and Ullmann, Management Science 15, 1969; few are left in
// practice: Beier and Voecking, J. Computer and System Sciences 69, 2004). Pure; thread-safe.

#include <cstddef>
#include <span>
#include <vector>

#include "trireme/plan/profile.h"

namespace trireme::plan {

/// Consecutive layers on one worker whose backwards follow each other: a stage.
struct LiveChain {
  std::vector<Layer> layers;
  int live = 1;  ///< micro-batches that may be between its forward and its backward at the same time
};

struct Recomputation {
  std::vector<std::vector<bool>> recomputed;  ///< by chain and layer
  double peak_bytes = 0;
  double added_s = 0;  ///< per micro-batch
};

/// What a choice costs.
Recomputation cost_of(std::span<const LiveChain> chains, std::vector<std::vector<bool>> recomputed);

/// The choice of least added time whose peak is at most `budget_bytes`; among those of equal time one of
/// least bytes. Without one that reaches it: the choice of the least peak, which says what would.
Recomputation choose_recomputed(std::span<const LiveChain> chains, double budget_bytes);

}  // namespace trireme::plan
