#include "trireme/parallel/pipeline/internal/stage_weights.h"

#include <algorithm>

#include "trireme/parallel/pipeline/internal/replicated_weights.h"
#include "trireme/parallel/pipeline/internal/versioned_weights.h"

namespace trireme::parallel {
namespace {

/// Weights that no other rank has: nothing to gather, to reduce or to keep.
class WholeWeights final : public StageWeights {
  using StageWeights::StageWeights;
};

bool learns(const Replica& replica) {
  return std::ranges::any_of(replica.parameters,
                             [](const auto& item) { return item.second.requires_grad(); });
}

}  // namespace

std::unique_ptr<StageWeights> make_stage_weights(Replica replica, const StageWeightsOptions& options) {
  if (options.asynchronous)
    return std::make_unique<VersionedWeights>(replica.parameters, options.stage, options.holders);
  if (options.data && options.data->size() > 1 && learns(replica)) {
    return std::make_unique<ReplicatedWeights>(*options.data, std::move(replica), options.reduction,
                                               options.stage);
  }
  return std::make_unique<WholeWeights>(std::move(replica.parameters));
}

}  // namespace trireme::parallel
