#pragma once
// Operations of a step program on the weights of one stage on this rank: an interface, so that the engine
// does not depend on replicas, versions and shards. The executor's actions call it at their places in the
// program. UNSHARD and RESHARD gather the weights and free them. REDUCE_GRAD starts the rest of the reduction
// of the stage's gradients, which may begin during the last backward before it. STEP waits for it, then
// updates. One thread.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "trireme/comm/group.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/data/distributed_data_parallel.h"
#include "trireme/parallel/pipeline/pipeline.h"
#include "trireme/parallel/zero/internal/bucket_pool.h"
#include "trireme/schedule/program.h"

namespace trireme::parallel {

class StageWeights {
 public:
  explicit StageWeights(optim::NamedTensors leaves) : leaves_(std::move(leaves)) {}
  virtual ~StageWeights() = default;
  StageWeights(const StageWeights&) = delete;
  StageWeights& operator=(const StageWeights&) = delete;

  /// `rank` begins the program from its first action; the rest of a failed pass is discarded.
  virtual void begin(const schedule::Program& /*program*/, int /*rank*/) {}
  /// Replaces the remainder of the program; actions executed so far are unchanged.
  virtual void continue_with(const schedule::Program& /*program*/, int /*rank*/) {}

  /// The whole weights are gathered; before() waits for them.
  virtual void unshard() {}
  /// Frees the weights that unshard() gathered.
  virtual void reshard() {}

  /// Around every F, B, I, W and RECOMPUTE of the stage, with or without samples.
  virtual void before(const schedule::Action& /*action*/) {}
  virtual void after(const schedule::Action& /*action*/) {}
  /// Called instead of after() if the action threw.
  virtual void aborted() {}

  /// Launches the reductions that the last backward has not started. Gradients are complete from here on.
  virtual void reduce() {}
  /// Waits until the gradients are reduced.
  virtual void finish() {}
  /// If finish() does not wait (ReductionEnd::kByParameter): waits for the gradients of these parameters
  /// only.
  virtual void finish(const optim::NamedTensors& /*parameters*/) {}

  /// Called around the optimizer's step: in between parameters() have the gradients.
  virtual void begin_update() {}
  virtual void end_update() {}

  /// Provides the newest weights to evaluations, until end_showing().
  virtual void show_newest() {}
  virtual void end_showing() {}
  /// While the result lives, leaves() have memory with arbitrary values: to find shapes.
  virtual std::shared_ptr<void> lend() { return nullptr; }
  /// parameters() were written by something other than an update. Called by all ranks of the stage.
  virtual void changed() {}

  virtual void zero_grad() {
    for (const auto& [name, leaf] : leaves_) leaf.mutable_grad().reset();
  }
  /// The tensors that are updated, saved and loaded, by the names of the model.
  virtual const optim::NamedTensors& parameters() const { return leaves_; }
  /// Which of parameters() are shards.
  virtual const Pieces& pieces() const {
    static const Pieces none;
    return none;
  }
  /// The tensors that the stage computes with.
  const optim::NamedTensors& leaves() const { return leaves_; }
  virtual Pipeline::Staleness staleness() const { return {}; }
  /// Seconds for which finish() has waited so far.
  virtual double waited_s() const { return 0; }

 protected:
  const optim::NamedTensors leaves_;  ///< the stage's tensors for computation
};

/// By the number of the stage.
using WeightsOfStages = std::map<int, std::unique_ptr<StageWeights>>;

/// How a stage's weights are held.
struct StageWeightsOptions {
  int stage = 0;
  int holders = 1;  ///< ranks of the pipeline that have the stage
  bool asynchronous = false;
  const std::optional<comm::Group>& data;  ///< ranks with the same stage in other pipelines
  std::optional<ShardGroups> shard_groups = {};
  const DataParallelOptions& reduction;
  ZeroOptions zero = {};
  std::shared_ptr<optim::Offload> offload = nullptr;  ///< where parts of parameters live; null: in memory
  bool exact = false;
  std::shared_ptr<BucketPool> buckets = nullptr;  ///< of make_bucket_pool(), for all stages of this rank
  std::set<std::string> common =
      {};  ///< parameters that other stages of this rank have, too (CommonParameters)
  std::set<std::string> shared = {};  ///< parameters that other stages, or other ranks of the pipeline, have
  std::set<std::string> rounded =
      {};  ///< parameters of which zero.working_type is enough (rounded_parameters())
  std::function<void(const at::Tensor&)> gradient_is_final = nullptr;  ///< as in PipelineOptions
};

/// How many actions of that rank make weight gradients of that stage: the last of them ends its backward.
int num_weight_gradients(const schedule::Program& program, int rank, int stage);

/// For the parameters of all stages of this rank, if gradients are sharded over replicas; else null.
std::shared_ptr<BucketPool> make_bucket_pool(const PipelineGroups& groups, const ZeroOptions& zero,
                                             const std::vector<at::Tensor>& parameters);

/// The kind that program and groups ask for; one row per kind. Collective where there are replicas.
std::unique_ptr<StageWeights> make_stage_weights(Replica replica, const StageWeightsOptions& options);

}  // namespace trireme::parallel
