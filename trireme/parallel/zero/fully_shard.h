#pragma once
// FSDP of a module in one call: fully_shard(context, module) makes FullyShardedDataParallel over the module's
// layers. Each layer is a unit that is gathered, as in torch.distributed.fsdp.fully_shard (Zhao et al.,
// "PyTorch FSDP", arXiv 2304.11277). Functions without state; collective.

#include "trireme/model/model.h"
#include "trireme/parallel/zero/fully_sharded_data_parallel.h"

namespace trireme::parallel {

/// Units: the children of `chain`. Throws as the constructor of FullyShardedDataParallel.
inline FullyShardedDataParallel fully_shard(comm::Context& context, const torch::nn::Sequential& chain,
                                            const FullyShardedOptions& options = {}) {
  return {context, model::layers_of(chain), options};
}

/// Units: Model::layers(), or the whole model where it lists none. `model` has to outlive the result. Throws
/// as the constructor of FullyShardedDataParallel.
inline FullyShardedDataParallel fully_shard(comm::Context& context, model::Model& model,
                                            const FullyShardedOptions& options = {}) {
  return {context, model::layers_or_whole(model), options};
}

}  // namespace trireme::parallel
