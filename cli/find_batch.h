#pragma once
// `trireme find-batch`, the part with tensors.

#include "cli/torch_program.h"

namespace trireme::cli {

/// Estimates steps of larger and larger batches over the ranks, measures the best ones, and prints a table or
/// JSON. Returns the exit code.
int run_find_batch(const Home& home, const FindBatchArguments& arguments);

}  // namespace trireme::cli
