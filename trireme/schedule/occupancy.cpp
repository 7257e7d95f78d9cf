#include "trireme/schedule/internal/occupancy.h"

#include <algorithm>
#include <map>
#include <set>

#include "trireme/schedule/weight_versions.h"

namespace trireme::schedule {
namespace {

/// Position of the last use of each version of each stage in a rank's list.
std::map<std::pair<int, int>, std::size_t> last_uses(const std::vector<Action>& actions,
                                                     const std::vector<std::vector<int>>& versions) {
  std::map<std::pair<int, int>, std::size_t> last;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    if (!is_compute(action.kind) && action.kind != ActionKind::kRecompute) continue;
    const std::vector<int>& of_stage = versions[static_cast<std::size_t>(action.stage)];
    last[{action.stage, of_stage[static_cast<std::size_t>(action.microbatch)]}] = i;
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

std::vector<int> peak_weight_versions(const Program& program) {
  const std::vector<std::vector<int>> versions = weight_versions(program);
  std::vector<int> peaks;
  for (const std::vector<Action>& actions : program.ranks) {
    const auto last = last_uses(actions, versions);
    std::map<int, std::set<int>> kept;  // stored versions of each stage
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
