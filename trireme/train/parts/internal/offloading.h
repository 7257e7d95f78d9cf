#pragma once
// Offloaded state of a plan (optim/offload.h).

#include <filesystem>
#include <memory>

#include "trireme/checkpoint/shard.h"
#include "trireme/comm/context.h"
#include "trireme/optim/offload.h"
#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {

/// Throws PlanError: state that cannot be offloaded in such a plan.
void check_offloading(const ParallelPlan& plan);

/// Where files of offloaded state are: offload.folder, else the run's folder.
std::filesystem::path offload_folder(const RunConfig& config);

/// The nearest one that exists: a run's folder does not yet.
std::filesystem::path existing_folder(std::filesystem::path folder);

/// Of this rank; null: nothing is offloaded.
std::shared_ptr<optim::Offload> offload_for(const ParallelPlan& plan, const comm::Context& context,
                                            c10::Device device);

/// The same, for shards; null for null.
std::shared_ptr<const checkpoint::OffloadedStorage> offloaded_storage_of(
    const std::shared_ptr<optim::Offload>& offload);

}  // namespace trireme::train
