#include "trireme/schedule/internal/occupancy.h"

#include <algorithm>
#include <map>
#include <set>

#include "trireme/schedule/internal/holders.h"

namespace trireme::schedule {
namespace {

/// How often each stage of a rank has stepped when its forwards come, by Holders::index.
std::vector<int> updates_before_forward(const Program& program, const Holders& holders) {
  std::vector<int> updates(holders.size());
  for (const std::vector<Action>& actions : program.ranks) {
    std::map<int, int> steps;
    for (const Action& action : actions) {
      if (action.kind == ActionKind::kStep) ++steps[action.stage];
      if (action.kind == ActionKind::kForward) {
        updates[holders.index(action.stage, action.microbatch)] = steps[action.stage];
      }
    }
  }
  return updates;
}

/// The position of the last use of each stage's versions in a rank's list.
std::map<std::pair<int, int>, std::size_t> last_uses(const std::vector<Action>& actions,
                                                     const Holders& holders,
                                                     const std::vector<int>& versions) {
  std::map<std::pair<int, int>, std::size_t> last;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    if (!is_compute(action.kind) && action.kind != ActionKind::kRecompute) continue;
    last[{action.stage, versions[holders.index(action.stage, action.microbatch)]}] = i;
  }
  return last;
}

}  // namespace

Occupancy occupancy_of(const Program& program, std::size_t rank, double kept_for_weight) {
  Occupancy result;
  int held = 0;
  double memory = 0;
  for (const Action& action : program.ranks[rank]) {
    if (action.kind == ActionKind::kForward) {
      ++held;
      memory += 1;
    }
    result.peak_activations = std::max(result.peak_activations, held);
    result.peak_memory = std::max(result.peak_memory, memory);
    if (action.kind == ActionKind::kBackwardInput) memory -= 1 - kept_for_weight;
    if (action.kind == ActionKind::kBackwardWeight) memory -= kept_for_weight;
    if (action.kind == ActionKind::kBackward) memory -= 1;
    if (makes_weight_gradient(action.kind)) --held;
  }
  return result;
}

std::vector<int> weight_versions(const Program& program) {
  const Holders holders(program);
  std::vector<int> versions = updates_before_forward(program, holders);
  for (int stage = 0; stage < program.num_stages; ++stage) {
    for (int microbatch = 0; microbatch < program.num_microbatches; ++microbatch) {
      int& version = versions[holders.index(stage, microbatch)];
      if (program.versions == WeightVersions::kVertical) version = versions[holders.index(0, microbatch)];
      if (program.versions == WeightVersions::kOneBehind) {
        version = std::max(0, microbatch / program.update_every - 1);
      }
    }
  }
  return versions;
}

std::vector<int> peak_weight_versions(const Program& program) {
  const Holders holders(program);
  const std::vector<int> versions = weight_versions(program);
  std::vector<int> peaks;
  for (const std::vector<Action>& actions : program.ranks) {
    const auto last = last_uses(actions, holders, versions);
    std::map<int, std::set<int>> kept;  // of each stage: versions that are there
    std::map<int, int> newest;
    int peak = 1;
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const int stage = actions[i].stage;
      if (actions[i].kind == ActionKind::kIdle) continue;
      std::set<int>& there = kept[stage];
      there.insert(newest[stage]);
      peak = std::max(peak, static_cast<int>(there.size()));
      if (actions[i].kind != ActionKind::kStep) continue;
      ++newest[stage];
      std::erase_if(there, [&](int version) {
        const auto use = last.find({stage, version});
        return use == last.end() || use->second < i;
      });
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace trireme::schedule
