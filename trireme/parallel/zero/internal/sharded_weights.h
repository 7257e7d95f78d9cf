#pragma once
// Weights of a stage that several pipelines hold together: each rank updates a part of them, from gradients
// that are reduced for that part alone (ZeRO, arXiv 1910.02054; zero_options.h selects the sharded state).
// Parameters that other stages share stay whole, as replicas. Rounded parameters, by the options, have copies
// of a working type for computation, while the updated values keep theirs. Collective among the ranks that
// hold the stage. One thread.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trireme/parallel/data/exact_sum.h"
#include "trireme/parallel/data/internal/replicas.h"
#include "trireme/parallel/pipeline/internal/stage_weights.h"
#include "trireme/parallel/zero/internal/gradient_shards.h"
#include "trireme/parallel/zero/internal/weight_shards.h"
#include "trireme/parallel/zero/zero_options.h"

namespace trireme::parallel {

class ShardedWeights final : public StageWeights {
 public:
  /// `options` have replicas, and buckets.
  ShardedWeights(Replica replica, const StageWeightsOptions& options);

  void begin(const schedule::Program& program, int rank) override;
  void unshard() override { weights_->gather(); }
  void reshard() override { weights_->release(); }
  void before(const schedule::Action& action) override;
  void after(const schedule::Action& action) override;
  void aborted() override { end_backward(); }
  void reduce() override;
  void finish() override;
  void end_update() override { weights_->changed(); }
  void show_newest() override;
  void end_showing() override { weights_->release(); }
  std::shared_ptr<void> lend() override { return weights_->lend(); }
  void changed() override { weights_->changed(); }
  /// As WeightShards::keep().
  std::shared_ptr<void> keep() { return weights_->keep(); }
  /// As WeightShards::check().
  void check() const { weights_->check(); }
  void zero_grad() override;
  const optim::NamedTensors& parameters() const override { return mine_; }
  const Pieces& pieces() const override { return pieces_; }
  double waited_s() const override;

  /// For callers with backward passes of their own, without a program: gradients of a pass are reduced in it,
  /// or kept whole until a pass that reduces.
  enum class Gradients { kKept, kReduced };
  void begin_step();
  void begin_backward(Gradients of_pass);
  void end_backward();
  /// The step will not continue: where reductions have begun, the group fails, for this reason.
  void give_up(const std::string& why) {
    if (gradients_) gradients_->give_up(why);
  }

 private:
  /// The tensor that a rank updates, and the source of its gradient.
  struct Updated {
    at::Tensor tensor;
    ShardPiece piece;
  };

  void lay_out(Replica replica, const StageWeightsOptions& options);
  void take_exact_sums();
  void mark_gradients();
  void unmark_gradients();
  void take_pieces(const std::vector<ShardBucket>& buckets);

  comm::Group everybody_;  ///< all replicas
  comm::Group group_;      ///< the ranks over which weights are sharded
  const std::optional<ShardGroups> shard_groups_;
  const int stage_;
  const bool keeps_gradients_;      ///< whole, until the last backward of a step
  std::vector<Parameter> sharded_;  ///< by number
  std::optional<WeightShards> weights_;
  std::optional<GradientShards> gradients_;  ///< where anything is learned
  std::vector<Updated> updated_;
  std::optional<DistributedDataParallel> shared_;  ///< where there are any; reduced after the rest
  std::optional<DistributedDataParallel::NoSync> shared_adds_up_;
  std::optional<ExactSum> exact_;  ///< instead of gradients_ and shared_
  std::vector<Coalesced> buffers_;
  double buffers_waited_s_ = 0;
  optim::NamedTensors mine_;
  std::vector<at::Tensor> marks_;  ///< by number: internal/released_parameter.h, reduced_gradient()
  Pieces pieces_;
  int num_left_ = 0;  ///< weight gradients still to come
};

}  // namespace trireme::parallel
