#pragma once
// Sharded state of replicas, by a configuration. Pure.

#include <c10/core/ScalarType.h>

#include "trireme/parallel/zero/zero_options.h"
#include "trireme/train/config/run_config.h"

namespace trireme::train {

/// `autocast_to` is the type of linear layers' computations.
parallel::ZeroOptions zero_options(const RunConfig& config, c10::ScalarType autocast_to);

}  // namespace trireme::train
