#pragma once
// `trireme backends`, the part with libtorch.

#include "cli/command.h"

namespace trireme::cli {

/// Prints the table of backends. Returns 0, or 3 when none can be used.
int list_backends(const BackendsArguments& arguments);

}  // namespace trireme::cli
