#pragma once
// The parameters of a run that ranks hold alike, and their names in a comparison.

#include <memory>

#include "trireme/comm/context.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/data/replica_check.h"
#include "trireme/train/plan/parallel_plan.h"
#include "trireme/train/plan/placement.h"
#include "trireme/train/step/shard_specs.h"

namespace trireme::train {

/// Of this rank.
struct ComparedParameters {
  optim::NamedTensors weights;  ///< that its layers compute with
  optim::NamedTensors updated;  ///< whole ones, or pieces
  const ShardSpecs& held;       ///< of the latter
};

/// By name, and by the part where layers are cut: among all ranks, or those of a site, which alone agree
/// between outer steps. Pieces, too, which groups of replicas hold alike; of parameters that are gathered for
/// use and given back, these alone. Nothing of weights that servers hold, which they bring again. Collective.
std::unique_ptr<parallel::ReplicaCheck> make_replica_check(const ParallelPlan& plan, const PlanGroups& groups,
                                                           comm::Context& context,
                                                           const ComparedParameters& parameters);

}  // namespace trireme::train
