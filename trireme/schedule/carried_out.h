#pragma once
// The part of the grammar that the ranks of a pipeline execute. A program may have more actions: it is read,
// validated, simulated and drawn unchanged, but a run would not execute them. Pure; thread-safe.

#include <string>

#include "trireme/schedule/program.h"

namespace trireme::schedule {

/// How a run holds activations.
enum class Activations {
  kKept,     ///< from forward to backward
  kDropped,  ///< and recomputed at RECOMPUTE or at the backward
};

/// How a run holds the weights of a stage.
enum class Weights {
  kWhole,
  kSharded,  ///< over the replicas of a pipeline
};

/// The first action that a run would pass over, with the reason: "rank 0, position 3, 0UNSHARD: ..."; empty
/// where everything is carried out. Positions count cells from 0.
std::string not_carried_out(const Program& program, Activations activations, Weights weights);

}  // namespace trireme::schedule
