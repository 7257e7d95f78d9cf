#pragma once
// `trireme estimate`, the part with tensors.

#include "cli/torch_program.h"

namespace trireme::cli {

/// Measures the costs of the configuration's model on its ranks, or reads them, and prints the time and the
/// memory of a step. Returns the exit code.
int run_estimate(const Home& home, const EstimateArguments& arguments);

}  // namespace trireme::cli
