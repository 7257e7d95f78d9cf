#pragma once
// The size of a gradient, for the log. Pure.

#include "trireme/optim/optimizer.h"

namespace trireme::train {

/// 2-norm over all gradients; those that are not defined count as zero.
double gradient_norm(const optim::NamedTensors& parameters);

}  // namespace trireme::train
