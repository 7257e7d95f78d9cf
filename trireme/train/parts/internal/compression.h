#pragma once
// parallel.compression: the plans that allow it.

#include <string>

#include "trireme/optim/optimizer.h"
#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {

/// Throws a PlanError: a setting that conflicts with a compression.
void check_compression(const ParallelPlan& plan);
/// The same where replicas shard the gradients.
void check_compression_of_shards(const ParallelPlan& plan);

parallel::CompressionOptions compression_options(const RunConfig& config);
/// The name of the compression, and whether "dgc" goes without momentum correction with this optimizer.
std::string compression_in_words(const RunConfig& config);
/// Without the momentum that a compression has instead, where there are replicas.
optim::OptimizerOptions optimizer_options(const ParallelPlan& plan);

}  // namespace trireme::train
