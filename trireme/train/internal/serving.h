#pragma once
// parallel.mode = "ps": servers add gradients up and update (parallel/served/).

#include <memory>
#include <vector>

#include "trireme/comm/context.h"
#include "trireme/model/layer.h"
#include "trireme/optim/optimizer.h"
#include "trireme/optim/tensor_parts.h"
#include "trireme/parallel/pipeline/pipeline_options.h"
#include "trireme/train/parallel_plan.h"
#include "trireme/train/placement.h"

namespace trireme::train {

/// Throws a Refusal: what servers cannot do.
void check_serving(const ParallelPlan& plan);

/// That of servers, or of this rank, whose parameters may be parts. Collective where servers have it.
std::unique_ptr<optim::Optimizer> optimizer_for(const ParallelPlan& plan, comm::Context& context,
                                                const optim::NamedTensors& parameters,
                                                const std::shared_ptr<optim::Offload>& offload,
                                                std::shared_ptr<const optim::TensorParts> parts = nullptr);

/// What the computation of a rank tells its optimizer while it goes on: gradients that are final, and, before
/// each layer, that its values are needed now. Where servers update, or gradients go by need.
class ArrivingRun {
 public:
  std::vector<model::Layer> arriving(std::vector<model::Layer> layers) const;
  void add_to(parallel::PipelineOptions& options) const;
  /// From here on it is told; before, nobody.
  void begin(optim::Optimizer& optimizer) { place_->optimizer = &optimizer; }

 private:
  struct Place {
    optim::Optimizer* optimizer = nullptr;
  };
  const std::shared_ptr<Place> place_ = std::make_shared<Place>();
};

/// The gradients of all ranks added up: for those who look.
optim::NamedTensors sums_over(comm::Group ranks, const optim::NamedTensors& parameters);

/// All ranks have rank 0's.
void share_buffers(comm::Group ranks, const optim::NamedTensors& buffers);

/// Where nobody on a rank reduces gradients, its pipeline has no replicas to reduce over.
parallel::PipelineGroups pipeline_groups(const ParallelPlan& plan, const PlanGroups& groups);

}  // namespace trireme::train
