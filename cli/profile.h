#pragma once
// `trireme profile`, the part with tensors.

#include "cli/torch_program.h"

namespace trireme::cli {

/// Times each layer of the configuration's model on this machine, prints a table or JSON and writes the
/// profile that `trireme plan` reads. Returns the exit code.
int run_profile(const Home& home, const ProfileArguments& arguments);

}  // namespace trireme::cli
