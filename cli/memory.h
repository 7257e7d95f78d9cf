#pragma once
// `trireme memory`, the part with tensors.

#include "cli/torch_program.h"

namespace trireme::cli {

/// Measures the layers of the configuration's model, prints what a rank of its run will take, and what one
/// would in other modes. Returns the exit code.
int run_memory(const Home& home, const MemoryArguments& arguments);

}  // namespace trireme::cli
