#include "trireme/train/plan/internal/sharding.h"

#include "trireme/optim/optimizer.h"

namespace trireme::train {

parallel::ZeroOptions zero_options(const RunConfig& config, c10::ScalarType autocast_to) {
  const ParallelOptions& parallel = config.parallel;
  const bool rounds = autocast_to != c10::ScalarType::Float && parallel.working_copy;
  return {.stage = static_cast<parallel::ZeroStage>(parallel.zero),
          .whole_tensors = optim::needs_whole_tensors(config.optimizer.name),
          .working_type = rounds ? std::optional(autocast_to) : std::nullopt,
          .persistent_below = parallel.persistent_below,
          .gathered_stages = static_cast<int>(parallel.gathered_layers),
          .keep_gradients = parallel.keep_gradients};
}

}  // namespace trireme::train
