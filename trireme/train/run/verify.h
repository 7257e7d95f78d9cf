#pragma once
// `trireme verify`: compares the parallel run with the serial one. Each step is done twice from the same
// weights and the same optimizer state: by all ranks with the configuration, and by rank 0 alone. Rank 0
// alone computes the whole global batch in as many micro-batches as there are parts. Loss, every gradient and
// every weight are compared. The next step begins from the parallel result. So a difference is found in the
// step that makes it, and rounding does not add up over steps.
//
// Buffers are not compared. The running statistics of batch norm are those of rank 0's parts, by design.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/model/model.h"
#include "trireme/objective/objective.h"
#include "trireme/train/plan/parallel_plan.h"
#include "trireme/train/run/comparison.h"

namespace trireme::train {

/// Settings that decide about rounding besides the plan.
struct Ranks {
  std::string backend;
  bool share_parameters = false;  ///< stages of a pipeline do
};

/// How far the two may be apart, and why. Where the parts are added in one order (at most two of them; one
/// per rank over a backend that adds in rank order, shm and threads; one pipeline whose stages finish their
/// micro-batches in order and share no parameters) gradients and weights have to be the
/// same bits; the mean loss is added in f64 in any order. Else f32 is rounded in another order. Compressed
/// gradients are rounded once as addends and once as a sum, each time as far as their format does. Optimizers
/// that divide a gradient by its own size turn rounding into steps where a gradient is nothing but rounding.
Bounds bounds_of(const ParallelPlan& plan, const Ranks& ranks);

/// Rejects plans without an equal serial run: one rank with one micro-batch, or a schedule that updates while
/// micro-batches are in flight. Throws InvalidArgument. Not collective: call it before ranks start.
void check_verifiable(const ParallelPlan& plan);

/// Custom parts of a program that replace those of the configuration; null: the configuration's.
struct OwnParts {
  /// Makes a model, a new one at each call. All start from the values of rank 0's first one.
  std::function<std::shared_ptr<model::Model>()> make_model = nullptr;
  std::shared_ptr<const objective::Objective> objective = nullptr;
};

/// Collective. The verdict is rank 0's: another rank compares replicas alone, which is no verification.
/// `steps` are done from the start of the run, or those that it has; a batch that grows does so within them;
/// where gradients were no numbers and both
/// sides left a step out, it counts as skipped, and without one that was not, nothing is verified. Time: that
/// of the parallel steps and of the serial ones; memory on rank 0: two more copies of model and optimizer.
/// Throws InvalidArgument, CommError, DataError, DivergedError.
Comparison verify(const RunConfig& config, comm::Context& context, const data::DataSource& data,
                  std::int64_t steps, const OwnParts& own = {});
/// The same for a plan that is there already.
Comparison verify(const ParallelPlan& plan, comm::Context& context, const data::DataSource& data,
                  std::int64_t steps, const OwnParts& own = {});

}  // namespace trireme::train
