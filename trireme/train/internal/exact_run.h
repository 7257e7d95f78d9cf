#pragma once
// run.exact: the bits of a run do not depend on how ranks share out its micro-batches, its layers and its
// optimizer. Sums over micro-batches follow one tree (PipelineOptions::exact), random numbers belong to a
// micro-batch and a layer, and the norm is that of whole gradients, parameter by parameter.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/model/layer.h"
#include "trireme/parallel/pipeline/pipeline_options.h"
#include "trireme/train/parallel_plan.h"

namespace trireme::train {

/// Threads of libtorch in this process are as many as the plan says, from here on.
class ExactRun {
 public:
  /// `data`: the ranks with the same layers and other micro-batches.
  ExactRun(const ParallelPlan& plan, std::optional<comm::Group> data);

  /// Each of them begins with a generator that is keyed by run, step, micro-batch and its place among them.
  std::vector<model::Layer> keyed(std::vector<model::Layer> layers) const;
  void add_to(parallel::PipelineOptions& options) const;
  void begin_step(std::int64_t step) { place_->step = step; }
  /// The sum of what all replicas' micro-batches have lost, on the first of them; 0 on the others.
  /// Collective.
  double sum_of_losses(double mine);

 private:
  struct Place {
    std::int64_t step = 0;
    std::int64_t microbatch = 0;  ///< of all replicas'
  };

  std::optional<comm::Group> data_;
  const std::uint64_t seed_;
  const int num_microbatches_;
  const std::shared_ptr<Place> place_ = std::make_shared<Place>();
};

/// Throws Refusal: what adds up in an order of its own, or a number of micro-batches that is no branch of the
/// tree.
void check_exact(const ParallelPlan& plan);
/// Throws InvalidArgument: layers whose numbers depend on which micro-batches a rank has seen (running
/// statistics), or whose gradients are added within a stage before a micro-batch has ended.
void check_exact(const ParallelPlan& plan, model::Model& model);

}  // namespace trireme::train
