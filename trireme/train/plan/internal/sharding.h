#pragma once
// What replicas share out, and how, as a configuration says it. Pure.

#include <c10/core/ScalarType.h>

#include "trireme/parallel/zero/zero_options.h"
#include "trireme/train/config/run_config.h"

namespace trireme::train {

/// `autocast_to` is what linear layers compute in.
parallel::ZeroOptions zero_options(const RunConfig& config, c10::ScalarType autocast_to);

}  // namespace trireme::train
