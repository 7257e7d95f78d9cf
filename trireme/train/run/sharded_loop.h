#pragma once
// Weights in shards and in pipeline stages for the checkpoints of a training loop of your own:
//
//   checkpoint::LoopCheckpoints checkpoints(*context, "runs/mine", train::sharded_loop(sharded, *optimizer));
//   for (std::int64_t step = checkpoints.restore() + 1; ...)
//
// Any number of ranks continues from it, and so does another kind of loop with the same optimizer: names are
// those of the whole model. No rank holds more than its own part meanwhile. All functions keep references to
// their arguments. Throw InvalidArgument where the state of the optimizer is not in memory (optim::Offload).

#include <vector>

#include "trireme/checkpoint/loop_checkpoints.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/pipeline/pipeline.h"
#include "trireme/parallel/zero/fully_sharded_data_parallel.h"

namespace trireme::train {

/// This rank's pieces of the parameters, the first rank's buffers, and the optimizer state of the pieces.
/// Optimizers are made of sharded.parameters(). The learning rate of an optimizer of Trireme is not saved.
checkpoint::LoopModel sharded_loop(parallel::FullyShardedDataParallel& sharded, optim::Optimizer& optimizer);
checkpoint::LoopModel sharded_loop(parallel::FullyShardedDataParallel& sharded,
                                   std::vector<torch::optim::Optimizer*> optimizers = {});

/// The same of this rank's stages of a pipeline, whose pieces they are where it shards them; optimizers are
/// made of pipeline.parameters(). An asynchronous one has to be drained: throws InvalidArgument.
checkpoint::LoopModel pipeline_loop(parallel::Pipeline& pipeline, optim::Optimizer& optimizer);
checkpoint::LoopModel pipeline_loop(parallel::Pipeline& pipeline,
                                    std::vector<torch::optim::Optimizer*> optimizers = {});

}  // namespace trireme::train
