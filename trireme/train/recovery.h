#pragma once
// What a run needs to go on after an interruption, with the same bits as if nothing had happened: parameters,
// buffers, optimizer state, the number of steps done (which is also the place in the epoch, and the key of
// all random numbers) and the loss of the epoch so far. A generator of a user's own is not among it. Rank 0
// alone reads and writes files; what it reads is broadcast, so the other ranks need no common file system.

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

enum class TakeUp {
  kNothing,
  kWhatIsThere,  ///< the newest checkpoint of the run's folder, where there is one
  kMustBeThere,  ///< none is an error that says where it was looked for
};

/// What a checkpoint is restored into; `exchange` is for whole_state().
struct Resumable {
  Trainer& trainer;
  Progress& progress;
  StateExchange& exchange;
};

/// What to throw where a run cannot be resumed.
DataError no_checkpoint_in(const std::filesystem::path& folder);

/// Brings the run to the newest checkpoint of its folder, where rank 0 wants that: its `take_up` counts.
/// Collective. Throws, on every rank, DataError; InvalidArgument when the configuration differs from the
/// checkpoint's in a key that decides the numbers.
void resume(const Resumable& run, comm::Context& context, TakeUp take_up);

/// Throws InvalidArgument when `config` changes a key that a run of the configuration `before`, which stopped
/// at `step`, has to keep (ConfigKeyInfo::on_resume). Opens no file.
void check_same_run(const RunConfig& config, const RunConfig& before, std::int64_t step);

/// Everything of this rank that changes while a run goes on, by name: parameters and buffers under the names
/// of the model, Trainer::state() under "optimizer/". Shared with the trainer, not copied.
checkpoint::TensorMap whole_state(Trainer& trainer);

/// Parameters and buffers of all ranks, on rank 0; those of its own are shared. Collective.
checkpoint::TensorMap gather_model(Trainer& trainer, StateExchange& exchange);

/// Throws DivergedError, on every rank, when weights or optimizer state of any rank are not finite.
/// Collective.
void check_finite(Trainer& trainer, comm::Context& context);

/// The state behind the last step, as it is saved, on rank 0; `exchange` is for whole_state(). What rank 0
/// itself holds is shared with the trainer and stays as it is until its next update
/// (Trainer::before_changes); buffers, which the next forward changes, and what comes from other ranks are
/// copies. Collective.
checkpoint::TrainingCheckpoint snapshot_of(Trainer& trainer, StateExchange& exchange,
                                           const Progress& progress, const RunConfig& config);

}  // namespace trireme::train
