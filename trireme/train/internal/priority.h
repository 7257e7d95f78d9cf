#pragma once
// parallel.priority = "forward": what the next forward needs first goes first, and each layer waits for its
// own parameters alone.

#include <memory>
#include <string>
#include <vector>

#include "trireme/optim/optimizer.h"
#include "trireme/parallel/pipeline/pipeline.h"
#include "trireme/train/parallel_plan.h"

namespace trireme::train {

/// Throws a Refusal: what cannot be had where updates come layer by layer.
void check_priority(const ParallelPlan& plan);

/// Gradients are reduced in slices, and asked for by parameter.
void reduce_by_need(const RunConfig& config, parallel::DataParallelOptions& options);

/// The same optimizer or, where gradients go by need, one whose updates come when they are asked for.
/// `pipeline` outlives it.
std::unique_ptr<optim::Optimizer> updating_by_need(const ParallelPlan& plan, parallel::Pipeline& pipeline,
                                                   const optim::NamedTensors& parameters,
                                                   std::unique_ptr<optim::Optimizer> optimizer);

}  // namespace trireme::train
