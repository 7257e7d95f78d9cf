#pragma once
// parallel.mode = "ps": servers add gradients up and update (parallel/served/).

#include <memory>
#include <vector>

#include "trireme/comm/context.h"
#include "trireme/model/layer.h"
#include "trireme/optim/optimizer.h"
#include "trireme/optim/tensor_parts.h"
#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {

/// Throws a PlanError: a setting that servers do not support.
void check_serving(const ParallelPlan& plan);

/// That of servers, or of this rank, whose parameters may be parts. Collective where servers have it.
std::unique_ptr<optim::Optimizer> optimizer_for(const ParallelPlan& plan, comm::Context& context,
                                                const optim::NamedTensors& parameters,
                                                const std::shared_ptr<optim::Offload>& offload,
                                                std::shared_ptr<const optim::TensorParts> parts = nullptr);

/// Each layer waits for the values of its own parameters before it computes, where `optimizer` points to one:
/// updates come while layers compute.
std::vector<model::Layer> waiting_for_values(std::vector<model::Layer> layers,
                                             const std::shared_ptr<optim::Optimizer*>& optimizer);

}  // namespace trireme::train
