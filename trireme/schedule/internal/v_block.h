#pragma once
// Orders over a V of 2p stages made of one repeating block: every micro-batch passes the V in the same
// rhythm, six units (F and I on both legs, and two W) after the one before it. How steep the four legs are
// decides how long activations live: their sum over 6 is the peak, as a share of p stages. Qi et al.,
// "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362, sections 3 and 4. Pure and thread-safe.

#include <vector>

#include "trireme/schedule/costs.h"
#include "trireme/schedule/program.h"

namespace trireme::schedule {

/// Units from one rank to the next.
struct Steepness {
  int forward_down, forward_up, backward_down, backward_up;
};

/// All orders whose legs follow each other closely without two actions of a rank in the same unit. Each
/// rank's F and I are in the rhythm; W goes where the rank would wait or has no memory left.
std::vector<Program> v_block_orders(int num_ranks, int num_microbatches, const Costs& costs, Steepness legs,
                                    double memory_limit);

}  // namespace trireme::schedule
