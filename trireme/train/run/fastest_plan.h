#pragma once
// The planner as one call, for training loops of your own (docs/auto-plan.md).

#include <filesystem>

#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/train/plan/parallel_plan.h"
#include "trireme/train/planner/measure_forms.h"

namespace trireme::train {

struct FastestPlanOptions {
  /// A plan in it is kept while the number of ranks is the same. Otherwise the new plan is written to it, in
  /// the form of `trireme plan --toml`. Rank 0 alone reads and writes it. Empty: no file.
  std::filesystem::path file = {};
  /// A model, an objective or data of the program, in place of those that the configuration names.
  FormOptions parts = {};
};

/// The fastest plan that fits into the memory of the hosts, for Trainer, run_training(), or by
/// pipeline_options() for a Pipeline. Planned keys that `config` has not at their defaults stay as they are.
/// Costs are measured, or read where this machine keeps them; rank 0 searches for 20 s at most, and all ranks
/// have the same result. On a device memory is not limited. Collective over the world. Throws as
/// search_plans() and measure_forms(); InvalidArgument: no plan fits, or the file names a key that is not
/// planned.
ParallelPlan fastest_plan(const RunConfig& config, comm::Context& context, const data::DataSource& data,
                          const FastestPlanOptions& options = {});

}  // namespace trireme::train
