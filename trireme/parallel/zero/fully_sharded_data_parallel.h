#pragma once
// Sharded data parallelism in a custom training loop: the ranks shard optimizer state, gradients and
// parameters (ZeRO, arXiv 1910.02054), layer by layer. A layer's weights are gathered before it computes,
// forward and backward, while the layer before it still computes. They are freed after it. Its gradients are
// reduced while backward continues; each rank gets those of its own pieces.
//
//   parallel::FullyShardedDataParallel sharded(context, model::layers_of(chain));
//   auto optimizer = optim::make_optimizer({.name = "adamw", .lr = 0.001}, sharded.parameters());  // pieces
//   for (...) {
//     sharded.zero_grad();
//     loss(sharded.forward(x), y).backward();
//     optimizer->step();
//   }
//
// Forward is asked for here, since modules in C++ have no hooks. Backward and autograd::grad() are autograd's
// own, for any loss after any number of forwards; a graph of gradients (create_graph) keeps weights gathered.
// Collective: every rank makes it from the same layers and runs all passes in the same order, on its batches.
// An update follows a backward directly: ranks of one host have the weights in one memory, and another rank
// may still compute with them. (Zhao et al., "PyTorch FSDP", arXiv 2304.11277.) One thread runs all passes.

#include <memory>
#include <optional>
#include <vector>

#include "trireme/batch/fields.h"
#include "trireme/comm/context.h"
#include "trireme/model/layer.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/data/distributed_data_parallel.h"
#include "trireme/parallel/pipeline/pipeline_options.h"
#include "trireme/parallel/zero/pieces.h"
#include "trireme/parallel/zero/zero_options.h"

namespace trireme::parallel {

struct FullyShardedOptions {
  /// A stage of a pipeline is a layer here. With gathered_stages = 0 a layer's weights stay gathered from its
  /// forward to its backward. ZeroStage::kNone, the default of ZeroOptions, means kParameters.
  ZeroOptions zero = {.stage = ZeroStage::kParameters};
  /// Buckets, the mean or sum over ranks, parameters that a backward does not reach.
  DataParallelOptions data_parallel = {};
  /// Shard groups and their copies (HSDP); none: sharded over all ranks.
  std::optional<ShardGroups> shard_groups = {};
};

class FullyShardedDataParallel {
 public:
  /// Takes the values of the first rank. A parameter that several layers list stays whole on every rank.
  /// Throws InvalidArgument (no layers, no parameter learns, skips without their counterpart),
  /// CommError.
  FullyShardedDataParallel(comm::Context& context, std::vector<model::Layer> layers,
                           const FullyShardedOptions& options = {});
  /// The same over a group (a mesh axis) instead of the world.
  FullyShardedDataParallel(comm::Group group, std::vector<model::Layer> layers,
                           const FullyShardedOptions& options = {});
  /// Fails the group when reductions are under way.
  ~FullyShardedDataParallel();
  FullyShardedDataParallel(const FullyShardedDataParallel&) = delete;
  FullyShardedDataParallel& operator=(const FullyShardedDataParallel&) = delete;

  /// The layers one after the other; with gradients where they are on. Passes on the exceptions of a layer;
  /// it may be called again. Throws InvalidArgument, by name, for a parameter that was loaded, converted,
  /// frozen, unfrozen or added after wrapping.
  Fields forward(const Fields& input);

  /// While it lives, gradients of backward passes add up whole on this rank and nothing is reduced; the first
  /// pass after it reduces the sum. Fewer reductions, for the memory of all gradients.
  class NoSync {
   public:
    explicit NoSync(FullyShardedDataParallel& sharded);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    FullyShardedDataParallel& sharded_;
    const bool before_;
  };
  /// A NoSync of this object: `const auto apart = sharded.no_sync();`.
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  /// Drops the gradients of the pieces, and the gradients that passes under no_sync have accumulated.
  void zero_grad();
  /// Of the pieces of all ranks together; scales them down where it is larger than `max_norm`. Returns it.
  /// Collective. Throws InvalidArgument for parts of tensor parallelism. clip_grad_norm_() of
  /// torch::nn::utils sees this rank's pieces alone and scales each rank's by another factor;
  /// torch::optim::LBFGS takes dot products of this rank's pieces alone. Neither can be noticed: use this,
  /// and element-wise optimizers.
  double clip_grad_norm(double max_norm);

  /// This rank's pieces, by the names of the model, with their gradients after a backward. An optimizer takes
  /// them, and a checkpoint saves and loads them. Pieces with gradients that no optimizer has changed in 32
  /// backward passes are named in a warning.
  const optim::NamedTensors& parameters() const;
  const Pieces& pieces() const;
  const optim::NamedTensors& buffers() const;
  /// Call it after parameters() were written outside an update that follows a backward, on all ranks.
  void weights_changed();
  /// Seconds for which this rank has waited for others' gradients so far.
  double waited_s() const;

 private:
  class Passes;
  std::shared_ptr<Passes> passes_;
};

}  // namespace trireme::parallel
