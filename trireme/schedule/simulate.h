#pragma once
// Simulated times and memory of a program: start and end of each action, the bubble, and the peak memory of
// each rank. Each rank runs its cells in order; a computation starts when its rank is free and its inputs
// have arrived. A message takes hop + message_bytes / bandwidth and occupies no rank; with a bandwidth, the
// messages of one direction of a link follow each other. This is the model of table 5 of Qi et al., "Zero
// Bubble Pipeline Parallelism", arXiv 2401.10241, and so is the cost: the longest time of any rank from its
// own first start to its own last end. Transfers of the program are shown, but add no other wait: a receive
// is posted at its place.
//
// Weights are gathered and gradients reduced next to the computations, one after the other on each rank: a
// computation waits for its stage's UNSHARD. While the last backward before a REDUCE_GRAD runs, its buckets
// become ready at an even pace and start; the last one starts at REDUCE_GRAD, which the rank does not wait
// for; STEP does, for those of all ranks that hold the stage. Of all exchanges a rank loses
// Costs::share_of_core itself. Pure and thread-safe.

#include <vector>

#include "trireme/schedule/costs.h"
#include "trireme/schedule/program.h"

namespace trireme::schedule {

struct Span {
  double start = 0;
  double end = 0;
};

struct Timeline {
  /// spans[r][i] belongs to actions i of rank r. A SEND lasts until its message is there, an UNSHARD until
  /// the weights are, a REDUCE_GRAD until the gradients are reduced.
  std::vector<std::vector<Span>> spans;
  double cost = 0;      ///< longest time of a rank from its own first start to its own last end
  double makespan = 0;  ///< from the first start of any rank to the last end of any
  double work = 0;      ///< computation of the rank that has most of it
  double bubble_rate =
      0;  ///< (cost - work) / cost: the share of the time in which nothing is done (GPipe, ZB)
  double bubble_to_work = 0;          ///< (cost - work) / work: Megatron's convention
  std::vector<int> peak_activations;  ///< per rank: micro-batches of a stage between F and B, or F and W
  std::vector<double> peak_memory;    ///< the same, of which after I only Costs::kept_for_weight counts
  std::vector<double> exchanged;  ///< per rank: time of exchanges of weights and gradients, next to bubbles
  std::vector<int>
      peak_weight_versions;  ///< per rank: most versions of any of its stages that are in use at once
};

/// Throws InvalidArgument when costs are missing or negative. The program must be sound: see validate().
Timeline simulate(const Program& program, const Costs& costs = {});

}  // namespace trireme::schedule
