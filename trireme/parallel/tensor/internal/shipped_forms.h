#pragma once
// The tensor-parallel forms of the models that we ship: the rows of the table in tensor_parallel_model.cpp.

#include "trireme/model/gpt.h"
#include "trireme/model/mlp.h"
#include "trireme/parallel/tensor/tensor_parallel_model.h"

namespace trireme::parallel {

/// Heads, features and vocabulary are cut; the classes of its logits, too.
TensorParallelModel form_of(const model::Gpt& whole, const TensorParallelOptions& options);
TensorLimits limits_of(const model::Gpt& whole);

/// Layers in pairs: of the first the outputs are cut, of the second the inputs. Where a layer is left over,
/// the classes of the logits are cut.
TensorParallelModel form_of(const model::Mlp& whole, const TensorParallelOptions& options);
TensorLimits limits_of(const model::Mlp& whole);

}  // namespace trireme::parallel
