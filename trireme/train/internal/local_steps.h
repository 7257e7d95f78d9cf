#pragma once
// parallel.local_steps: what it fits, and what of it goes into checkpoints.

#include <filesystem>
#include <memory>
#include <optional>

#include "trireme/checkpoint/shard.h"
#include "trireme/comm/context.h"
#include "trireme/parallel/local/outer_steps.h"
#include "trireme/train/internal/replica_rows.h"
#include "trireme/train/parallel_plan.h"
#include "trireme/train/placement.h"

namespace trireme::train {

class Trainer;

/// Throws a Refusal: what cannot be had where sites train apart.
void check_local_steps(const ParallelPlan& plan);

/// Of the sites; null where they do not train apart.
std::unique_ptr<parallel::OuterSteps> outer_steps_for(const ParallelPlan& plan, const PlanGroups& groups,
                                                      const optim::NamedTensors& parameters,
                                                      const optim::NamedTensors& buffers);

/// What the sites agree on besides the model, and of each its own model and optimizer, a row for each.
checkpoint::Shards site_shards(Trainer& trainer);

/// The same, to be filled from a checkpoint that another number of sites may have written: one that takes up
/// the rows of several has their mean. Where the checkpoint holds none all begin with its model.
class KeptBySites {
 public:
  /// Collective.
  KeptBySites(Trainer& trainer, comm::Context& context, const std::filesystem::path& checkpoint);
  const checkpoint::Shards& shards() const { return shards_; }
  /// They have been filled.
  void take_up() const;

 private:
  parallel::OuterSteps* outer_;
  checkpoint::Shards shards_;
  StoredRows rows_;
  bool are_there_ = false;
};

}  // namespace trireme::train
