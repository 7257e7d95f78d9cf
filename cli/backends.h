#pragma once
// `trireme backends`, the part with libtorch.

#include "cli/command.h"

namespace trireme::cli {

/// Prints the tables of backends, and of networks between hosts. Returns 0, or 3 when no backend can be used.
int list_backends(const BackendsArguments& arguments);

}  // namespace trireme::cli
