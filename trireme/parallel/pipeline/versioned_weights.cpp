#include "trireme/parallel/pipeline/internal/versioned_weights.h"

#include <algorithm>
#include <utility>

#include "trireme/schedule/weight_versions.h"

namespace trireme::parallel {
using schedule::Action;

void VersionedWeights::begin(const schedule::Program& program, int rank) {
  versions_.show_newest();
  versions_.restart();
  continue_with(program, rank);
}

void VersionedWeights::continue_with(const schedule::Program& program, int rank) {
  version_of_ = std::move(schedule::weight_versions(program)[static_cast<std::size_t>(stage_)]);
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

/// Each holder has one micro-batch, so the sum is divided by the number of holders.
void VersionedWeights::begin_update() {
  versions_.begin_update(1 / static_cast<double>(holders_));
  staleness_.versions = std::max(staleness_.versions, versions_.num_kept());
}

}  // namespace trireme::parallel
