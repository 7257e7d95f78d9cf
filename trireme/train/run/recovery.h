#pragma once
// The state that lets an interrupted run continue with the same bits: parameters, buffers, optimizer state,
// the number of steps done, and the loss of the epoch so far. The number of steps is also the place in the
// epoch and the key of all random numbers. Custom generators are not included. Each rank names its shards of
// it. checkpoint/shared_folder.h assigns reads and writes to ranks.

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/checkpoint/held_state.h"
#include "trireme/checkpoint/shared_folder.h"
#include "trireme/comm/context.h"
#include "trireme/train/config/run_config.h"
#include "trireme/train/run/epoch_loss.h"
#include "trireme/train/run/patience.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {

/// State of a run that its trainer does not hold.
struct Progress {
  EpochLoss epoch_loss;
  double best_score = -std::numeric_limits<double>::infinity();  ///< of checkpoint.best; higher is better
  Patience patience;
};

enum class ResumeMode {
  kNever,
  kIfPresent,  ///< the newest checkpoint of the run's folder, where there is one
  kRequired,   ///< a missing one is an error that names the searched place
};

/// The target of a restore from a checkpoint; `sees`: the ranks that see the run's folder.
struct Resumable {
  Trainer& trainer;
  Progress& progress;
  const std::vector<bool>& sees;
};

/// The configuration that a checkpoint holds. Throws InvalidArgument: it has keys or values that this version
/// does not know, or no longer has. The message names how the run `config` can continue.
RunConfig config_of_checkpoint(const std::string& content, const RunConfig& config);

/// The error where a run cannot be resumed.
DataError no_checkpoint_in(const std::filesystem::path& folder);

/// Brings the run to the newest checkpoint of its folder, if rank 0 requests it: its `resume_mode` counts.
/// The log of rank 0 lists changed_keys(). It also has the learning rate of the next step, as it is and as
/// the checkpoint's configuration would have it. Collective. Throws, on every rank, DataError, also when the
/// training data are not those of the checkpoint. Throws InvalidArgument when the configuration differs from
/// the checkpoint's in a key that decides the numbers.
void resume(const Resumable& run, comm::Context& context, ResumeMode resume_mode);

/// Brings the run to the newest state that processes of the job hold in memory (run_memory.h), where there is
/// one; false: there is none. A checkpoint of a later step counts more: false, too. Collective.
bool resume_from_memory(const Resumable& run, comm::Context& context,
                        const std::vector<checkpoint::HeldState>& held);

/// Throws InvalidArgument when `config` changes a key that a run of the configuration `before`, which stopped
/// at `step`, has to keep (ConfigKeyInfo::on_resume). Opens no file.
void check_same_run(const RunConfig& config, const RunConfig& before, std::int64_t step);

/// "KEY was VALUE and is now VALUE" for each key that differs between `before` and `config`, in the order of
/// the table.
std::vector<std::string> changed_keys(const RunConfig& config, const RunConfig& before);

/// Everything of this rank that a save writes: Trainer::state() and the run's progress. Shared with the
/// trainer, not copied.
checkpoint::Shards state_to_save(Trainer& trainer, const Progress& progress);

/// Fills the parts from the checkpoint in `folder`, and runs each part's action after a restore; `sees`: the
/// ranks that see the folder. Throws DataError. Collective.
void restore_state(const StateParts& parts, comm::Context& context, const std::filesystem::path& folder,
                   const std::vector<bool>& sees);

/// Throws DivergedError, on every rank, when weights or optimizer state of any rank are not finite.
/// Collective.
void check_finite(Trainer& trainer, comm::Context& context);

/// Throws DivergedError when the loss of the evaluation at the end of a run is not finite.
void check_outcome(const Evaluation& evaluation, std::int64_t step);

/// This rank's part of the state after the last step; `shares` is for state_to_save(). Tensors that only
/// updates change (StatePart::changes) are shared with the trainer until its next update
/// (Trainer::before_changes). The rest, and shards of other ranks, are copies. Collective.
std::optional<checkpoint::CheckpointPart> snapshot_of(Trainer& trainer, checkpoint::SaveShares& shares,
                                                      const Progress& progress, const RunConfig& config);

}  // namespace trireme::train
