#pragma once
// Checkpoints of a training loop of one's own, over any number of ranks: a module whose replicas are equal
// (as DistributedDataParallel keeps them), optimizers of torch::optim, each rank's generators, and more
// tensors by name. In the form of a run's (docs/checkpoint-format.md): atomic, verified before they are used,
// a damaged one is moved aside for the one before; `trireme checkpoint` reads them. All calls are collective;
// one thread.

#include <ATen/core/Generator.h>

#include <cstdint>
#include <filesystem>
#include <vector>

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
};

class LoopCheckpoints {
 public:
  /// Makes the folder; one program at a time writes into it. `keep`: so many stay, the newest.
  LoopCheckpoints(comm::Context& context, std::filesystem::path folder, LoopState state, int keep = 2);

  /// Brings everything to the newest checkpoint and returns its step; 0 when there is none. With another
  /// number of ranks than it was saved by, generators stay as they are, which is a warning. Throws DataError
  /// on every rank: another module's or optimizer's.
  std::int64_t restore();
  /// Saves what there is behind that many steps; returns when it is on disk. Throws DataError on every rank.
  void save(std::int64_t step);

 private:
  Shards shards_to_save() const;

  comm::Context& context_;
  const std::filesystem::path folder_;
  LoopState state_;
  const int keep_;
  std::vector<bool> sees_folder_;  ///< by rank
};

}  // namespace trireme::checkpoint
