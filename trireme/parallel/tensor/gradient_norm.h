#pragma once
// The 2-norm of all gradients of a model, parts of whose parameters are on the ranks of a group: for
// clipping, which has to be the same on all ranks.
//
//   optim::clip_to_norm(parameters, parallel::gradient_norm(*model, group), 1.0);

#include <torch/nn/module.h>

#include "trireme/comm/group.h"

namespace trireme::parallel {

/// A f64 number without dims, the same on all ranks, on the device of the gradients, which is not waited for.
/// A parameter of several names counts once; a gradient that is not defined is zero. Collective; one
/// reduction of a number.
at::Tensor gradient_norm(const torch::nn::Module& model, comm::Group group);

}  // namespace trireme::parallel
