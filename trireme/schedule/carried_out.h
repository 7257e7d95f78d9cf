#pragma once
// What of the grammar the ranks of a pipeline act upon. A program may say more: it is read, validated,
// simulated and drawn as it stands, but a run would not do what it says. Pure; thread-safe.

#include <string>

#include "trireme/schedule/program.h"

namespace trireme::schedule {

/// How a run holds activations.
enum class Activations {
  kKept,     ///< from forward to backward
  kDropped,  ///< and computed again, where the program says RECOMPUTE or the backward comes
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
