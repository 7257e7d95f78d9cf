#pragma once
// The implementation of `trireme data`, without its options.

#include "cli/torch_program.h"

namespace trireme::cli {

/// Exit code 0, or 4 when `verify` found something damaged. Throws DataError, InvalidArgument.
int run_data(const Home& home, const DataArguments& arguments);

}  // namespace trireme::cli
