#pragma once
// The program `trireme`.

#include "cli/command.h"

namespace trireme::cli {

Program light_program();

}  // namespace trireme::cli
