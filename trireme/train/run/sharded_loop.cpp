#include "trireme/train/run/sharded_loop.h"

#include <set>

#include "trireme/base/error.h"
#include "trireme/checkpoint/checkpoint_part.h"
#include "trireme/train/step/held_parts.h"

namespace trireme::train {
namespace {

checkpoint::Shards shards_of_loop(const parallel::FullyShardedDataParallel& sharded,
                                  optim::Optimizer& optimizer) {
  checkpoint::TensorMap state;
  std::set<std::string> buffers;
  for (const auto& [name, piece] : sharded.parameters()) state.emplace(name, piece.detach());
  for (const auto& [name, tensor] : optimizer.state())
    state.emplace(checkpoint::kOptimizerPrefix + name, tensor.detach());
  for (const auto& [name, buffer] : sharded.buffers()) {
    state.emplace(name, buffer.detach());
    buffers.insert(name);
  }
  for (const auto& [name, tensor] : state)
    require(!tensor.is_meta(), "the values of '", name,
            "' live elsewhere than in memory, where checkpoints of ",
            "a loop do not find them; make the optimizer without an Offload, or train with a Trainer");
  checkpoint::Shards shards = shards_of(state, {.pieces = sharded.pieces()});
  for (checkpoint::Shard& shard : shards)
    if (buffers.contains(shard.name)) shard.replicas = checkpoint::Replicas::kFirstCounts;
  return shards;
}

}  // namespace

checkpoint::ShardedLoopState sharded_loop(parallel::FullyShardedDataParallel& sharded,
                                          optim::Optimizer& optimizer) {
  return {.shards = [&sharded, &optimizer] { return shards_of_loop(sharded, optimizer); },
          .filled =
              [&sharded, &optimizer] {
                sharded.weights_changed();
                optimizer.restored();
              }};
}

}  // namespace trireme::train
