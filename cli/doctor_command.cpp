#include <iostream>

#include "cli/command.h"

namespace trireme::cli {

Command doctor_command() {
  return {.name = "doctor",
          .summary = "Say what this machine has, what would be slow or fail, and what to do",
          .usage = "[OPTIONS]",
          .examples = "  trireme doctor\n  trireme doctor --json\n",
          .declare = [](CLI::App&) -> std::function<int()> { return [] { return 0; }; }};
}

}  // namespace trireme::cli
