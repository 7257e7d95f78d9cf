#pragma once
// One protocol for state that a run saves and restores. Each feature that keeps tensors from step to step
// registers them as a StatePart: which tensors, when they change, their layout over the ranks, and the action
// of a restore. Snapshots, resumes, checks for finite numbers and comparisons read the same list
// (Trainer::state()), so that a new feature adds its state in one place. Values; not thread-safe.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trireme/checkpoint/safetensors.h"
#include "trireme/checkpoint/shard.h"
#include "trireme/train/step/shard_specs.h"

namespace trireme::train {

/// The phase of a step in which tensors change first. A background save copies tensors that forward or
/// backward changes before the next step begins, and the rest before the next update.
enum class ChangesIn { kForward, kBackward, kUpdate };

/// Sizes of the tensors of a checkpoint, by name.
using StoredSizes = std::map<std::string, std::vector<std::int64_t>>;

/// How a part is restored from one checkpoint.
struct Restoration {
  checkpoint::Shards shards = {};     ///< to be filled from the checkpoint, which holds all of them
  std::function<void()> finish = {};  ///< called after that, on all ranks in the same order; may be null
};

/// The tensors that one feature keeps.
struct StatePart {
  std::string prefix = {};         ///< of the names of its shards in a checkpoint; empty: the model's
  checkpoint::Shards shards = {};  ///< this rank's; shared with the feature, not copied
  ChangesIn changes = ChangesIn::kUpdate;
  bool must_be_finite = false;  ///< a number that is not finite ends the run before a save
  /// The tensors that a checkpoint with these tensors (those under `prefix`) restores. Null: `shards`, and
  /// the checkpoint has to hold all of them.
  std::function<Restoration(const StoredSizes&)> restore = {};
};
using StateParts = std::vector<StatePart>;

/// The part of those tensors, whose names get the prefix: boxes for the parts in `held`.
StatePart state_part(const std::string& prefix, const checkpoint::TensorMap& tensors, const ShardSpecs& held);

/// The shards of all parts, in their order.
checkpoint::Shards shards_of(const StateParts& parts);

/// For a part that older checkpoints lack: its tensors keep their values where the checkpoint has none.
void keep_where_not_stored(StatePart& part);

}  // namespace trireme::train
