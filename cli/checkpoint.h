#pragma once
// The implementation of `trireme checkpoint`, without its options.

#include "cli/command.h"

namespace trireme::cli {

/// Exit code 0, or 4 when `verify` found something wrong. Throws DataError, InvalidArgument.
int run_checkpoint(const CheckpointArguments& arguments);

}  // namespace trireme::cli
