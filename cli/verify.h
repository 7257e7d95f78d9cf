#pragma once
// `trireme verify`, the part with tensors.

#include "cli/torch_program.h"

namespace trireme::cli {

/// As a rank of a world, or alone: verifies, and rank 0 prints the verdict. With -n N: becomes the launcher
/// of N ranks that do. Returns the exit code: 0 equal, 5 not.
int run_verify(const Home& home, const VerifyArguments& arguments);

}  // namespace trireme::cli
