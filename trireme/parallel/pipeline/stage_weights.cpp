#include "trireme/parallel/pipeline/internal/stage_weights.h"

#include <algorithm>

#include "trireme/parallel/pipeline/internal/exact_weights.h"
#include "trireme/parallel/pipeline/internal/replicated_weights.h"
#include "trireme/parallel/pipeline/internal/versioned_weights.h"
#include "trireme/parallel/pipeline/internal/watched_weights.h"
#include "trireme/parallel/zero/internal/sharded_weights.h"

namespace trireme::parallel {
namespace {

/// Weights that only this rank has: nothing to gather, to reduce or to keep.
class WholeWeights final : public StageWeights {
  using StageWeights::StageWeights;
};

bool learns(const Replica& replica) {
  return std::ranges::any_of(replica.parameters,
                             [](const auto& item) { return item.second.requires_grad(); });
}

}  // namespace

int num_weight_gradients(const schedule::Program& program, int rank, int stage) {
  const auto& actions = program.ranks[static_cast<std::size_t>(rank)];
  return static_cast<int>(std::ranges::count_if(actions, [stage](const schedule::Action& action) {
    return action.stage == stage && schedule::makes_weight_gradient(action.kind);
  }));
}

std::shared_ptr<BucketPool> make_bucket_pool(const PipelineGroups& groups, const ZeroOptions& zero,
                                             const std::vector<at::Tensor>& parameters) {
  if (!groups.data || zero.stage == ZeroStage::kNone) return nullptr;
  const comm::Group& shards = groups.shard_groups ? groups.shard_groups->shards : *groups.data;
  return std::make_shared<BucketPool>(shards, zero, parameters);
}

std::unique_ptr<StageWeights> make_stage_weights(Replica replica, const StageWeightsOptions& options) {
  if (options.asynchronous)
    return std::make_unique<VersionedWeights>(replica.parameters, options.stage, options.holders);
  const bool has_replicas = options.data && options.data->size() > 1;
  if (has_replicas && options.zero.stage != ZeroStage::kNone)
    return std::make_unique<ShardedWeights>(std::move(replica), options);
  if (options.exact) return std::make_unique<ExactWeights>(options.data, replica, options.reduction);
  Replica reduced = replica;
  std::erase_if(reduced.parameters, [&](const auto& item) { return options.common.contains(item.first); });
  if (has_replicas && learns(reduced)) {
    return std::make_unique<ReplicatedWeights>(std::move(replica.parameters), std::move(reduced), options);
  }
  if (options.gradient_is_final && !has_replicas)
    return std::make_unique<WatchedWeights>(std::move(replica.parameters), options);
  return std::make_unique<WholeWeights>(std::move(replica.parameters));
}

}  // namespace trireme::parallel
