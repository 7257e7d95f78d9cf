#include "trireme/parallel/pipeline/internal/versioned_weights.h"

#include <algorithm>

namespace trireme::parallel {
namespace {

using schedule::Action;
using schedule::ActionKind;

/// Updates of the stage before the forward of each micro-batch, on the rank that runs it.
std::vector<int> updates_before_forward(const schedule::Program& program, int stage) {
  std::vector<int> updates(static_cast<std::size_t>(program.num_microbatches), 0);
  for (const std::vector<Action>& actions : program.ranks) {
    int done = 0;
    for (const Action& action : actions) {
      if (action.stage != stage) continue;
      done += action.kind == ActionKind::kStep ? 1 : 0;
      if (action.kind == ActionKind::kForward) updates[static_cast<std::size_t>(action.microbatch)] = done;
    }
  }
  return updates;
}

/// The version of the stage's weights that each micro-batch uses: updates since the start.
std::vector<int> versions_used(const schedule::Program& program, int stage) {
  using schedule::WeightVersions;
  if (program.versions == WeightVersions::kVertical) return updates_before_forward(program, 0);
  if (program.versions != WeightVersions::kOneBehind) return updates_before_forward(program, stage);
  std::vector<int> versions;
  for (int m = 0; m < program.num_microbatches; ++m)
    versions.push_back(std::max(0, m / program.update_every - 1));
  return versions;
}

}  // namespace

void VersionedWeights::begin(const schedule::Program& program, int rank) {
  versions_.show_newest();
  versions_.restart();
  go_on_with(program, rank);
}

void VersionedWeights::go_on_with(const schedule::Program& program, int rank) {
  version_of_ = versions_used(program, stage_);
  std::vector<int> uses;
  for (const Action& action : program.ranks[static_cast<std::size_t>(rank)]) {
    if (action.stage != stage_ || !schedule::is_compute(action.kind)) continue;
    const auto version = static_cast<std::size_t>(version_of(action));
    uses.resize(std::max(uses.size(), version + 1));
    ++uses[version];
  }
  versions_.set_uses(std::move(uses));
}

void VersionedWeights::before(const Action& action) { versions_.show(version_of(action)); }

void VersionedWeights::after(const Action& action) {
  if (!schedule::is_compute(action.kind)) return;
  const int version = version_of(action);
  if (schedule::makes_weight_gradient(action.kind))
    staleness_.updates = std::max(staleness_.updates, versions_.version() - version);
  versions_.release(version);
}

/// The holders have a micro-batch each: their sum becomes the mean.
void VersionedWeights::begin_update() {
  versions_.begin_update(1 / static_cast<double>(holders_));
  staleness_.versions = std::max(staleness_.versions, versions_.num_kept());
}

}  // namespace trireme::parallel
