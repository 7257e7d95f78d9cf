#pragma once
// What a run needs to go on after an interruption, with the same bits as if nothing had happened: parameters,
// buffers, optimizer state, the number of steps done (which is also the place in the epoch) and the loss of
// the epoch so far. Rank 0 alone reads and writes files; what it reads is broadcast, so the other ranks need
// no common file system.

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>

#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/comm/context.h"
#include "trireme/train/epoch_loss.h"
#include "trireme/train/run_config.h"
#include "trireme/train/state_exchange.h"
#include "trireme/train/trainer.h"

namespace trireme::train {

/// What a run knows besides what its trainer holds.
struct Progress {
  EpochLoss epoch_loss;
  double best_score = -std::numeric_limits<double>::infinity();  ///< of checkpoint.best; higher is better
};

enum class NoCheckpoint {
  kError,       ///< an error that says where it was looked for
  kStartFresh,  ///< as if there had been no wish to resume
};

/// Brings `trainer` and `progress` to the newest valid checkpoint in `folder`. Collective. Throws DataError
/// (on rank 0, which the others then miss), InvalidArgument when the configuration differs from the
/// checkpoint's in a key that decides the numbers.
void resume(Trainer& trainer, Progress& progress, const RunConfig& config, comm::Context& context,
            const std::filesystem::path& folder, NoCheckpoint otherwise);

/// Everything of this rank that changes while a run goes on, by name: parameters and buffers under the names
/// of the model, Trainer::state() under "optimizer/". Shared with the trainer, not copied.
checkpoint::TensorMap whole_state(Trainer& trainer);

/// The state behind the last step, as it is saved, on rank 0; `exchange` is for whole_state(). What rank 0
/// itself holds is shared with the trainer and stays as it is until its next update
/// (Trainer::before_changes); buffers, which the next forward changes, and what comes from other ranks are
/// copies. Collective.
checkpoint::TrainingCheckpoint snapshot_of(Trainer& trainer, StateExchange& exchange,
                                           const Progress& progress, const RunConfig& config);

}  // namespace trireme::train
