#pragma once
// Values of one rank for all.

#include <torch/nn/module.h>

#include "trireme/comm/group.h"

namespace trireme::parallel {

/// Copies parameters and buffers of the group's rank 0 into the modules of the others, which have the same.
/// Collective. Throws CommError.
void broadcast_module(comm::Group& group, const torch::nn::Module& module);

}  // namespace trireme::parallel
