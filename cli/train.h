#pragma once
// `trireme train`, the part with tensors.

#include "cli/torch_program.h"

namespace trireme::cli {

/// As a rank of a world, or alone: trains. With -n N: checks the configuration, then becomes the launcher of
/// N ranks that do (exec, so that nothing of libtorch stays behind in the launcher). Returns the exit code.
int run_train(const Home& home, const TrainArguments& train);

}  // namespace trireme::cli
