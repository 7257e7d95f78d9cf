#pragma once
// The loss of ranks that compute a form of a model (parallel/tensor/tensor_parallel_model.h): of parts of its
// layers, or pieces of sequences.

#include "trireme/objective/objective.h"
#include "trireme/parallel/tensor/tensor_parallel_model.h"

namespace trireme::train {

/// Inputs of the loss of a micro-batch.
struct OutputsAndTargets {
  const Fields& outputs;  ///< of the form
  const Fields& targets;  ///< of whole samples
};

/// Of the samples that this rank speaks of: all, or its pieces of them. Collective over the form's ranks.
at::Tensor loss_of_form(const objective::Objective& objective, const parallel::TensorParallelModel& form,
                        const parallel::TensorParallelOptions& options, const OutputsAndTargets& of);

}  // namespace trireme::train
