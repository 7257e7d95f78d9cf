#pragma once
// Weights of a stage that several pipelines hold, side by side: gradients are reduced bucket by bucket from
// the last backward on (data/distributed_data_parallel.h). Collective among the replicas. One thread.

#include <optional>

#include "trireme/parallel/data/distributed_data_parallel.h"
#include "trireme/parallel/pipeline/internal/stage_weights.h"

namespace trireme::parallel {

class ReplicatedWeights final : public StageWeights {
 public:
  /// `reduced`: those of the parameters whose gradients are reduced here.
  ReplicatedWeights(optim::NamedTensors parameters, Replica reduced, const StageWeightsOptions& options);

  void begin(const schedule::Program& program, int rank) override;
  void before(const schedule::Action& action) override;
  void after(const schedule::Action& action) override;
  void reduce() override { ddp_.start_reduction(); }
  void finish() override;
  void finish(const optim::NamedTensors& parameters) override { ddp_.finish_reduction(parameters); }
  double waited_s() const override { return ddp_.statistics().waited_s; }

 private:
  const int stage_;
  const bool by_parameter_;  ///< finish() leaves gradients on their way
  DistributedDataParallel ddp_;
  std::optional<DistributedDataParallel::NoSync> adds_up_;  ///< in backwards before the last
  int num_left_ = 0;                                        ///< weight gradients still to come
};

}  // namespace trireme::parallel
