#pragma once
// run.exact: the bits of a run do not depend on the distribution of its micro-batches, layers and optimizer
// state over ranks. Sums over micro-batches follow one tree (PipelineOptions::exact). Random numbers belong
// to a micro-batch and a layer. The norm is that of whole gradients, parameter by parameter.

#include "trireme/model/model.h"
#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {

/// Throws PlanError: a setting that adds up in an order of its own, or a number of micro-batches that is no
/// branch of the tree.
void check_exact(const ParallelPlan& plan);
/// Throws InvalidArgument: layers whose numbers depend on the micro-batches that a rank has processed
/// (running statistics). Also layers whose gradients are added within a stage before a micro-batch has ended.
void check_exact(const ParallelPlan& plan, model::Model& model);

}  // namespace trireme::train
