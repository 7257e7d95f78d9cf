#include "trireme/schedule/weight_versions.h"

#include <algorithm>
#include <map>

namespace trireme::schedule {
namespace {

using VersionTable = std::vector<std::vector<int>>;

/// For each stage and micro-batch: updates of the stage before the forward, on the rank that runs it.
VersionTable updates_before_forward(const Program& program) {
  const auto stages = static_cast<std::size_t>(program.num_stages),
             microbatches = static_cast<std::size_t>(program.num_microbatches);
  VersionTable updates(stages, std::vector<int>(microbatches, 0));
  for (const std::vector<Action>& actions : program.ranks) {
    std::map<int, int> steps;
    for (const Action& action : actions) {
      if (action.kind == ActionKind::kStep) ++steps[action.stage];
      if (action.kind != ActionKind::kForward) continue;
      updates[static_cast<std::size_t>(action.stage)][static_cast<std::size_t>(action.microbatch)] =
          steps[action.stage];
    }
  }
  return updates;
}

}  // namespace

VersionTable weight_versions(const Program& program) {
  VersionTable versions = updates_before_forward(program);
  if (program.versions == WeightVersions::kVertical)
    std::fill(versions.begin() + 1, versions.end(), versions.front());
  if (program.versions != WeightVersions::kOneBehind) return versions;
  for (std::vector<int>& of_stage : versions) {
    for (std::size_t m = 0; m < of_stage.size(); ++m)
      of_stage[m] = std::max(0, static_cast<int>(m) / program.update_every - 1);
  }
  return versions;
}

VersionTable versions_by_action(const Program& program) {
  VersionTable by_action;
  if (program.update_every == 0) {
    for (const std::vector<Action>& actions : program.ranks)
      by_action.emplace_back(actions.size(), kNoVersion);
    return by_action;
  }
  const VersionTable used = weight_versions(program);
  for (const std::vector<Action>& actions : program.ranks) {
    std::vector<int>& of_rank = by_action.emplace_back();
    std::map<int, int> steps;
    for (const Action& action : actions) {
      int version = kNoVersion;
      if (action.kind == ActionKind::kStep) version = ++steps[action.stage];
      if (is_compute(action.kind) || action.kind == ActionKind::kRecompute)
        version = used[static_cast<std::size_t>(action.stage)][static_cast<std::size_t>(action.microbatch)];
      of_rank.push_back(version);
    }
  }
  return by_action;
}

}  // namespace trireme::schedule
