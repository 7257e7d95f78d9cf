#pragma once
// Weights in shards for the checkpoints of a training loop of one's own:
//
//   checkpoint::LoopCheckpoints checkpoints(context, "runs/mine", train::sharded_loop(sharded, *optimizer));
//   for (std::int64_t step = checkpoints.restore() + 1; ...)

#include "trireme/checkpoint/loop_checkpoints.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/zero/fully_sharded_data_parallel.h"

namespace trireme::train {

/// This rank's pieces of the parameters, the first rank's buffers, and what the optimizer, made of
/// sharded.parameters(), keeps for the pieces. Refers to both. Any number of ranks goes on from it, no rank
/// holds more than its own meanwhile. The learning rate is no part of it. Saving throws InvalidArgument where
/// values live elsewhere than in memory (optim::Offload).
checkpoint::ShardedLoopState sharded_loop(parallel::FullyShardedDataParallel& sharded,
                                          optim::Optimizer& optimizer);

}  // namespace trireme::train
