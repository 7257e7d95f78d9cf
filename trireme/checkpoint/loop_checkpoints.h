#pragma once
// Checkpoints of a training loop of one's own, over any number of ranks: a module whose replicas are equal
// (as DistributedDataParallel keeps them) and optimizers of torch::optim, or weights of which each rank holds
// a part (train/run/sharded_loop.h); each rank's generators, and more tensors by name. In the form of a run's
// (docs/checkpoint-format.md): atomic, verified before they are used, a damaged one is moved aside for the
// one before; `trireme checkpoint` reads them. All calls are collective; one thread.

#include <ATen/core/Generator.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/checkpoint/loop_scheduler.h"
#include "trireme/checkpoint/module_state.h"
#include "trireme/checkpoint/shard.h"
#include "trireme/comm/context.h"

namespace trireme::checkpoint {

/// What a loop goes on from. Refers to what it names.
struct LoopState {
  torch::nn::Module& module;  ///< that holds all the optimizers' parameters
  std::vector<torch::optim::Optimizer*> optimizers = {};
  std::vector<at::Generator> generators = {};  ///< of this rank; none: libtorch's for the CPU
  TensorMap others = {};                       ///< saved, and filled again; the same on all ranks
  /// Of learning rates; the same on all ranks. Rates themselves are saved with the optimizer; the steps of a
  /// scheduler that is not named here are not, and it falls back to its first one.
  std::vector<LoopScheduler> schedulers = {};
};

/// What a loop goes on from whose ranks share out weights and what optimizers keep: train::sharded_loop()
/// makes one.
struct ShardedLoopState {
  /// This rank's parts: of the weights by the model's names, of what optimizers keep under kOptimizerPrefix.
  /// Shared, not copied; the same names and boxes at every call. May throw.
  std::function<Shards()> shards;
  std::function<void()> filled = {};           ///< on every rank, when the parts have a checkpoint's values
  std::vector<at::Generator> generators = {};  ///< as LoopState's
  TensorMap others = {};                       ///< as LoopState's
  std::vector<LoopScheduler> schedulers = {};  ///< as LoopState's
};

class LoopCheckpoints {
 public:
  /// What is saved and filled besides generators and others.
  class Content;

  /// Throws InvalidArgument for a module whose parameters a Pipeline or FullyShardedDataParallel holds, as
  /// save() and restore() do. Makes the folder; one program at a time writes into it. `keep`: so many stay,
  /// the newest.
  LoopCheckpoints(comm::Context& context, std::filesystem::path folder, LoopState state, int keep = 2);
  LoopCheckpoints(comm::Context& context, std::filesystem::path folder, ShardedLoopState state, int keep = 2);
  ~LoopCheckpoints();
  LoopCheckpoints(const LoopCheckpoints&) = delete;
  LoopCheckpoints& operator=(const LoopCheckpoints&) = delete;

  /// Brings everything to the newest checkpoint and returns its step; 0 when there is none. With another
  /// number of ranks than it was saved by, generators stay as they are, which is a warning; so do schedulers
  /// of which it holds nothing. Throws DataError
  /// on every rank: another module's or optimizer's, a loop's over replicas for one over shards, or the other
  /// way round.
  std::int64_t restore();
  /// Saves what there is behind that many steps; returns when it is on disk. What one rank throws is thrown
  /// on every rank: DataError where it cannot be written, and what ShardedLoopState::shards throws.
  void save(std::int64_t step);

 private:
  template <class State>
  LoopCheckpoints(comm::Context& context, std::filesystem::path folder, std::unique_ptr<Content> content,
                  State&& state, int keep);
  Shards shards_to_save() const;
  /// What the checkpoint holds of each scheduler, to be filled; empty where it holds nothing.
  std::vector<TensorMap> rooms_of_schedulers(const TensorMap& held, const std::string& source) const;

  comm::Context& context_;
  const std::filesystem::path folder_;
  const std::unique_ptr<Content> content_;
  std::vector<at::Generator> generators_;
  const TensorMap others_;
  const std::vector<LoopScheduler> schedulers_;
  const int keep_;
  std::vector<bool> sees_folder_;  ///< by rank
};

}  // namespace trireme::checkpoint
