#pragma once
// Features of a plan that conflict. A feature is a row: its settings, the properties that it needs, and those
// that it removes. A feature that needs a property which another one of the plan removes is rejected. The
// message and the nearest plan follow from the two rows, so a new feature is one row and names no other
// feature.

#include <string>
#include <vector>

#include "trireme/train/plan/internal/plan_error.h"
#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {

/// Properties that features need of a plan.
enum class Property {
  kWholeModel,
  kWholeLayers,
  kWholeSequences,
  kReplicatedState,
  kStateInMemory,
  kUpdateAtEnd,
  kUpdatesOnRanks,
  kCommonSteps,
  kGradientNorm,
  kJointSkips,
  kEveryUpdate,
  kMeanGradient,
  kGradientsAtOnce,
  kPlainGradients,
  kFixedWeights,  ///< between steps, and from a forward to its backward
  kDeviceLayers,
  kRankIndependentBits,
};

/// Whether a feature of the plan leaves it without that. The program of the plan need not be there.
bool lacks(const ParallelPlan& plan, Property property);

/// Throws a PlanError for the first pair of features that do not fit together: "A needs PROPERTY (why); B:
/// why not". Its fixes turn one of the two off, that of the earlier row first.
void check_conflicts(const ParallelPlan& plan);

/// All pairs of rows that do not fit together, for docs/hybrid.md: feature, property with the reason, feature
/// with the reason.
struct Conflict {
  std::string needing, need, lacking, lack;
};
std::vector<Conflict> all_conflicts();

}  // namespace trireme::train
