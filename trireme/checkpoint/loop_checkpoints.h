#pragma once
// Checkpoints of a training loop of your own, over any number of ranks: models with their optimizers
// (loop_model.h), each rank's generators, learning-rate schedulers, counters, and more tensors by name. In
// the format of a run's (docs/checkpoint-format.md): atomic, verified before they are used, a damaged one is
// moved aside for the one before; `trireme checkpoint` reads them.
//
//   checkpoint::LoopCheckpoints checkpoints(*context, "runs/mine", {*model, {&optimizer}},
//                                           {.schedulers = {&schedule}, .counters = {{"epoch", &epoch}}});
//   for (std::int64_t step = checkpoints.restore() + 1; step <= steps; ++step) {
//     ...
//     if (step % 100 == 0) checkpoints.save(step);
//   }
//
// Of a pipeline: train::pipeline_loop(pipe, optimizer); of shards: train::sharded_loop(sharded, optimizer).
// Of several models: {{"encoder", checkpoint::replicated_loop(*encoder, {&adam})}, {"decoder", ...}}. All
// calls are collective; one thread.

#include <ATen/core/Generator.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "trireme/checkpoint/loop_model.h"
#include "trireme/checkpoint/loop_scheduler.h"
#include "trireme/checkpoint/module_state.h"  // IWYU pragma: export
#include "trireme/checkpoint/shard.h"
#include "trireme/comm/context.h"

namespace trireme::checkpoint {

/// State that a loop restores besides its models, and the number of checkpoints that stay. Keeps references.
struct LoopOptions {
  std::vector<at::Generator> generators = {};  ///< of this rank; none: libtorch's for the CPU
  TensorMap others = {};                       ///< saved, and filled again; the same on all ranks
  /// Of learning rates; the same on all ranks. Rates themselves are saved with the optimizer; the steps of a
  /// scheduler that is not named here are not, and it falls back to its first one.
  std::vector<LoopScheduler> schedulers = {};
  std::map<std::string, std::int64_t*> counters = {};  ///< by name; the same on all ranks
  int keep = 2;                                        ///< so many checkpoints stay, the newest; at least 1
};

class LoopCheckpoints {
 public:
  /// Throws InvalidArgument for a module whose parameters a Pipeline or FullyShardedDataParallel holds, as
  /// save() and restore() do. Makes the folder; one program at a time writes into it.
  LoopCheckpoints(comm::Context& context, std::filesystem::path folder, LoopModels models,
                  LoopOptions options = {});

  /// Brings everything to the newest checkpoint and returns its step; 0 when there is none. With another
  /// number of ranks than it was saved by, generators stay as they are, which is a warning; so do schedulers
  /// of which it holds nothing. Throws DataError on every rank, and changes nothing: another model's,
  /// optimizer's or scheduler's, or other names.
  std::int64_t restore();
  /// Saves the state after that many steps; returns when it is on disk. An exception of one rank is thrown on
  /// every rank: DataError where it cannot be written, and those of models.
  void save(std::int64_t step);

 private:
  TensorMap counters() const;
  Shards shards_to_save() const;
  /// Weights and optimizer state of all models, as this rank has them, to be filled.
  Shards models_to_fill(const TensorMap& held, const std::string& source);
  /// Tensors to fill with the state of each scheduler in the checkpoint; empty where it has none.
  std::vector<TensorMap> rooms_of_schedulers(const TensorMap& held, const std::string& source) const;
  TensorMap room_of_generators(const TensorMap& held, const std::string& source) const;

  comm::Context& context_;
  const std::filesystem::path folder_;
  LoopModels models_;
  LoopOptions options_;
  std::vector<bool> sees_folder_;  ///< by rank
};

}  // namespace trireme::checkpoint
