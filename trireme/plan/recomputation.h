#pragma once
// Chooses the layers of a chain that recompute their forward for the backward. Activations stay under a
// budget with the least additional time. Model of the memory: a layer keeps the tensors that its operators
// save from forward to backward. A recomputed layer keeps its input only, and all the rest exists again in
// its backward. Tensors between two layers count once, where one of the two keeps them. The peak is the
// largest sum over the layers' backwards, of all micro-batches in flight. The choice is exact: partial
// choices are extended layer by layer. One is dropped only when another is no worse in every respect
// (Nemhauser and Ullmann, Management Science 15, 1969). In practice few are left (Beier and Voecking, J.
// Computer and System Sciences 69, 2004). Pure; thread-safe.

#include <cstddef>
#include <span>
#include <vector>

namespace trireme::plan {

/// Costs of a micro-batch in a layer.
struct Recomputable {
  double forward_s = 0;
  double inner_bytes = 0;                          ///< saved for the backward, without inputs and outputs
  double output_bytes = 0;                         ///< handed to the next layer
  bool saves_input = false, saves_output = false;  ///< for its backward, too
};

/// Consecutive layers on one worker whose backwards follow each other: a stage.
struct LiveChain {
  std::vector<Recomputable> layers;
  int live = 1;  ///< micro-batches that may be between its forward and its backward at the same time
};

struct Recomputation {
  std::vector<std::vector<bool>> recomputed;  ///< by chain and layer
  double peak_bytes = 0;
  double added_s = 0;  ///< per micro-batch
};

/// Costs of a choice.
Recomputation cost_of(std::span<const LiveChain> chains, std::vector<std::vector<bool>> recomputed);

/// The choice of least additional time whose peak is at most `budget_bytes`; among those of equal time one of
/// least bytes. Without one that reaches it: the choice of the least peak, which is the smallest possible
/// budget.
Recomputation choose_recomputed(std::span<const LiveChain> chains, double budget_bytes);

}  // namespace trireme::plan
