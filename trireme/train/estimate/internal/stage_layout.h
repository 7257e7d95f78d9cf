#pragma once
// The stages of a plan over the layers of a measured model: which layers each has, on which rank of a
// pipeline, and which of them are recomputed in the backward. Pure.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "trireme/schedule/program.h"
#include "trireme/train/estimate/model_costs.h"
#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {

class StageLayout {
 public:
  /// Both have to outlive it. Throws InvalidArgument: an activation budget that nothing reaches.
  StageLayout(const ParallelPlan& plan, const ModelUse& model);

  const ParallelPlan& plan() const { return plan_; }
  const ModelUse& model() const { return model_; }
  /// The actions of a step. Of stages that update while micro-batches are under way: of so many updates that
  /// the pipeline is full.
  const schedule::Program& program() const { return program_; }
  int num_stages() const { return program_.num_stages; }
  int num_ranks() const { return static_cast<int>(program_.ranks.size()); }

  /// The first layer of the stage, and the first after it.
  std::pair<std::size_t, std::size_t> layers_of(int stage) const;
  bool is_recomputed(std::size_t layer) const { return recomputed_[layer]; }
  /// The rank of the pipeline that has the stage; of replicated stages the first.
  int holder(int stage) const { return ranks_of_stages_[static_cast<std::size_t>(stage)].front(); }
  /// Also as one of several replicas.
  std::vector<int> stages_of(int rank) const;
  /// Bytes of the stage's output where another rank takes it; else 0.
  double bytes_sent(int stage) const;
  /// Of the stages' layers, each name once, in the order of the model.
  std::vector<ParameterUse> parameters_of(const std::vector<int>& stages) const;

 private:
  const ParallelPlan& plan_;
  const ModelUse& model_;
  const schedule::Program program_;
  std::vector<bool> recomputed_;
  std::vector<std::vector<int>> ranks_of_stages_;
};

}  // namespace trireme::train
