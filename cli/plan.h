#pragma once
// `trireme plan FILE.toml`, the part with tensors.

#include "cli/torch_program.h"

namespace trireme::cli {

/// Measures the costs of the configuration's model on its ranks, or reads them. Searches for the fastest plan
/// within the memory, and prints it with its alternatives. Returns the exit code.
int run_plan(const Home& home, const PlanArguments& arguments);

}  // namespace trireme::cli
