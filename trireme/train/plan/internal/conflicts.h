#pragma once
// Which features of a plan do not fit together. A feature is a row: how a configuration asks for it, what it
// needs, and what it leaves without. A feature that needs what another one of the plan leaves without is
// rejected; the message and the nearest plan follow from the two rows, so that a new feature is one row and
// names no other feature.

#include <string>
#include <vector>

#include "trireme/train/plan/internal/plan_error.h"
#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {

/// What features need of a plan.
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
